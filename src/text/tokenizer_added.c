/* Added tokens: found in the text before anything else sees it (AddedVocabulary in the `tokenizers` library). */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- loading ---- */

/* A slot for the token of this id, the old one when it is known; NULL when out of memory. */
static pm_added_token *token_slot(pm_added *added, pm_token id)
{
    for (size_t i = 0; i < added->n; i++)
        if (added->tokens[i].id == id)
            return &added->tokens[i];
    void *tokens = added->tokens;
    int status = pm_grow(&tokens, &added->cap, added->n + 1, sizeof(*added->tokens));
    added->tokens = tokens;
    if (status != PM_OK)
        return NULL;
    added->tokens[added->n] = (pm_added_token){.id = id, .rank = added->n};
    return &added->tokens[added->n++];
}

int pm_added_load(pm_added *added, pm_vocab *vocab, const pm_tok_file *file, const json_t *value, const char *where,
                  pm_token id)
{
    pm_added_token token = {.id = id};
    const char *text;
    size_t len;
    int status = pm_tok_object(file, value, where, "id content single_word lstrip rstrip normalized special __type");
    if (status == PM_OK)
        status = pm_tok_string(file, value, where, "content", &text, &len);
    if (status != PM_OK)
        return status;
    if (!len || len > PM_ADDED_TEXT_MAX)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: the content of the token with id %d has %zu bytes, not 1..%d",
                       file->path, where, (int)id, len, PM_ADDED_TEXT_MAX);
    if ((status = pm_tok_bool(file, value, where, "single_word", false, &token.single_word)) != PM_OK ||
        (status = pm_tok_bool(file, value, where, "lstrip", false, &token.lstrip)) != PM_OK ||
        (status = pm_tok_bool(file, value, where, "rstrip", false, &token.rstrip)) != PM_OK ||
        (status = pm_tok_bool(file, value, where, "special", false, &token.special)) != PM_OK ||
        (status = pm_tok_bool(file, value, where, "normalized", !token.special, &token.normalized)) != PM_OK ||
        (status = pm_vocab_add(vocab, file, where, text, len, id)) != PM_OK)
        return status;
    pm_added_token *slot = token_slot(added, id);
    if (!slot)
        return pm_fail_memory(file->err);
    token.rank = slot->rank;
    token.text = vocab->entries[id].text;
    token.len = len;
    *slot = token;
    vocab->entries[id].special = token.special;
    return PM_OK;
}

int pm_added_special(pm_added *added, pm_vocab *vocab, pm_token id, bool only_new)
{
    size_t known = added->n;
    pm_added_token *slot = token_slot(added, id);
    if (!slot)
        return PM_ERR_MEMORY;
    if (only_new && added->n == known)
        return PM_OK;
    slot->special = vocab->entries[id].special = true;
    slot->text = vocab->entries[id].text;
    slot->len = vocab->entries[id].len;
    return PM_OK;
}

/* Byte order; a prefix comes before what it is a prefix of; of equal patterns special ones come first, as the library
 * puts them first into its automaton, and otherwise older ones. */
static int compare_tokens(const void *a, const void *b)
{
    const pm_added_token *x = *(const pm_added_token *const *)a, *y = *(const pm_added_token *const *)b;
    size_t len = x->pattern_len < y->pattern_len ? x->pattern_len : y->pattern_len;
    int order = memcmp(x->pattern, y->pattern, len);
    if (order)
        return order;
    if (x->pattern_len != y->pattern_len)
        return x->pattern_len < y->pattern_len ? -1 : 1;
    if (x->special != y->special)
        return x->special ? -1 : 1;
    return x->rank < y->rank ? -1 : 1;
}

static int build_set(pm_added *added, bool normalized, pm_added_set *set)
{
    set->sorted = pm_arena_alloc(&added->arena, added->n + 1, sizeof(void *));
    if (!set->sorted)
        return PM_ERR_MEMORY;
    for (size_t i = 0; i < added->n; i++) {
        if (added->tokens[i].normalized == normalized && added->tokens[i].pattern_len) {
            set->sorted[set->n++] = &added->tokens[i];
            set->first[(uint8_t)added->tokens[i].pattern[0]] = true;
        }
    }
    qsort(set->sorted, set->n, sizeof(void *), compare_tokens);
    return PM_OK;
}

int pm_added_finish(pm_added *added, const pm_normalizer *normalizer, pm_error *err)
{
    pm_normalizer_work work = {0};
    int status = PM_OK;
    for (size_t i = 0; i < added->n && status == PM_OK; i++) {
        pm_added_token *token = &added->tokens[i];
        pm_section pattern = {token->text, token->len, NULL};
        if (token->normalized)
            status = pm_normalize(normalizer, &pattern, &work, &pattern, err);
        if (status != PM_OK)
            break;
        token->pattern =
            pattern.text == token->text ? token->text : pm_arena_strdup(&added->arena, pattern.text, pattern.len);
        token->pattern_len = pattern.len;
        if (!token->pattern)
            status = pm_fail_memory(err);
    }
    if (status == PM_OK && (build_set(added, false, &added->raw) != PM_OK || build_set(added, true, &added->normal)))
        status = pm_fail_memory(err);
    pm_normalizer_work_free(&work);
    return status;
}

void pm_added_free(pm_added *added)
{
    free(added->tokens);
    pm_arena_free(&added->arena);
    *added = (pm_added){0};
}

/* ---- searching ---- */

/* The first index in sorted[low..high) whose byte at `depth` is not below `byte`; all share the bytes before. */
static size_t lower_bound(const pm_added_set *set, size_t low, size_t high, size_t depth, unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)set->sorted[middle]->pattern[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that starts at `at` and lies in trusted bytes; NULL when there is none. */
static const pm_added_token *longest_at(const pm_added_set *set, const pm_section *section, size_t at)
{
    const pm_added_token *best = NULL;
    size_t low = 0, high = set->n;
    for (size_t depth = 0; low < high && at + depth < section->len; depth++) {
        unsigned byte = (unsigned char)section->text[at + depth];
        if (section->trust && !section->trust[at + depth])
            break;
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
        if (low < high && set->sorted[low]->pattern_len == depth + 1) {
            best = set->sorted[low];
            while (low < high && set->sorted[low]->pattern_len == depth + 1)
                low++;
        }
    }
    return best;
}

/* True when the characters around [start, stop) are not word characters. */
static bool stands_alone(const pm_section *section, size_t start, size_t stop)
{
    size_t len;
    if (start > 0 &&
        (pm_char_kind(pm_char_at(section->text + pm_char_before(section->text, start), &len)) & PM_CHAR_WORD))
        return false;
    return stop == section->len || !(pm_char_kind(pm_char_at(section->text + stop, &len)) & PM_CHAR_WORD);
}

const pm_added_token *pm_added_next(pm_added_search *search, size_t *start, size_t *stop)
{
    const pm_section *section = &search->section;
    while (search->set->n && search->at < section->len) {
        size_t at = search->at, len;
        const pm_added_token *token =
            search->set->first[(uint8_t)section->text[at]] ? longest_at(search->set, section, at) : NULL;
        if (!token) {
            search->at++;
            continue;
        }
        /* The search goes on behind the token even where it is not taken. */
        *start = at;
        *stop = search->at = at + token->pattern_len;
        if (token->single_word && !stands_alone(section, *start, *stop))
            continue;
        while (token->lstrip && *start > search->end) {
            size_t before = pm_char_before(section->text, *start);
            if (!(pm_char_kind(pm_char_at(section->text + before, &len)) & PM_CHAR_SPACE))
                break;
            *start = before;
        }
        if (token->lstrip && *start < search->end)
            *start = search->end;
        while (token->rstrip && *stop < section->len &&
               pm_char_kind(pm_char_at(section->text + *stop, &len)) & PM_CHAR_SPACE)
            *stop += len;
        search->end = *stop;
        return token;
    }
    return NULL;
}
