/* The vocabulary: tokens by id, ids by spelling, and what each token decodes to. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* Room for ids below n. */
static int reserve(pm_vocab *vocab, size_t n)
{
    if (n <= vocab->n)
        return PM_OK;
    void *entries = vocab->entries;
    int status = pm_grow(&entries, &vocab->cap, n, sizeof(*vocab->entries));
    vocab->entries = entries;
    if (status != PM_OK)
        return status;
    memset(vocab->entries + vocab->n, 0, (n - vocab->n) * sizeof(*vocab->entries));
    vocab->n = n;
    return PM_OK;
}

int pm_vocab_load(pm_vocab *vocab, const pm_tok_file *file, const json_t *object)
{
    int status = pm_tok_object(file, object, "model.vocab", NULL);
    size_t bytes = 0, n = 0;
    const char *key;
    json_t *value;
    if (status != PM_OK)
        return status;
    json_object_foreach((json_t *)object, key, value)
    {
        pm_token id;
        size_t len = strlen(key);
        if ((status = pm_tok_id(file, value, "model.vocab", key, &id)) != PM_OK)
            return status;
        if (len == 0 || len > PM_TOKEN_TEXT_MAX)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab: the token with id %d has %zu bytes, not 1..%d",
                           file->path, (int)id, len, PM_TOKEN_TEXT_MAX);
        if (!pm_add(bytes, len + 1, &bytes))
            return pm_fail_memory(file->err);
        n = (size_t)id + 1 > n ? (size_t)id + 1 : n;
    }
    char *pool = pm_arena_alloc(&vocab->arena, bytes + 1, 1);
    if (!pool || reserve(vocab, n) != PM_OK)
        return pm_fail_memory(file->err);
    json_object_foreach((json_t *)object, key, value)
    {
        size_t len = strlen(key);
        pm_vocab_entry *entry = &vocab->entries[json_integer_value(value)];
        if (entry->text)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: model.vocab: '%s' and '%s' have the same id %d", file->path,
                           entry->text, key, (int)json_integer_value(value));
        entry->text = memcpy(pool, key, len + 1);
        entry->len = (uint32_t)len;
        pool += len + 1;
        if (pm_map_set(&vocab->ids, entry->text, len, (int)json_integer_value(value)) != PM_OK)
            return pm_fail_memory(file->err);
    }
    return PM_OK;
}

int pm_vocab_add(pm_vocab *vocab, const pm_tok_file *file, const char *where, const char *text, size_t len, pm_token id)
{
    int known = pm_map_get(&vocab->ids, text, len, -1);
    if (known == id)
        return PM_OK;
    if (known >= 0)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: '%s' has the id %d, but %d elsewhere", file->path, where,
                       text, (int)id, known);
    if ((size_t)id < vocab->n && vocab->entries[id].text)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: '%s' has the id %d, which is the id of '%s'", file->path,
                       where, text, (int)id, vocab->entries[id].text);
    char *copy = pm_arena_strdup(&vocab->arena, text, len);
    if (!copy || reserve(vocab, (size_t)id + 1) != PM_OK || pm_map_set(&vocab->ids, copy, len, id) != PM_OK)
        return pm_fail_memory(file->err);
    vocab->entries[id] = (pm_vocab_entry){.text = copy, .len = (uint32_t)len};
    return PM_OK;
}

/* Writes the bytes that text[0..len) spells in the byte-level alphabet; false when it has a character from outside. */
static bool spelt_bytes(const char *text, size_t len, char *out, size_t *n)
{
    *n = 0;
    for (size_t i = 0, k; i < len; i += k) {
        int byte = pm_char_byte(pm_char_at(text + i, &k));
        if (byte < 0)
            return false;
        out[(*n)++] = (char)byte;
    }
    return true;
}

/* A token with a character outside the alphabet stands for its own UTF-8, as in the library's ByteLevel decoder. */
int pm_vocab_finish(pm_vocab *vocab, const pm_tok_file *file)
{
    size_t total = 0;
    for (size_t id = 0; id < vocab->n; id++)
        total += vocab->entries[id].len;
    char *pool = pm_arena_alloc(&vocab->arena, total + 1, 1);
    if (!pool)
        return pm_fail_memory(file->err);
    for (size_t id = 0; id < vocab->n; id++) {
        pm_vocab_entry *entry = &vocab->entries[id];
        size_t n = 0;
        entry->bytes = entry->text;
        entry->n_bytes = entry->len;
        if (entry->text && spelt_bytes(entry->text, entry->len, pool, &n)) {
            entry->bytes = pool;
            entry->n_bytes = (uint32_t)n;
            pool += n;
        }
    }
    return PM_OK;
}

void pm_vocab_free(pm_vocab *vocab)
{
    free(vocab->entries);
    pm_map_free(&vocab->ids);
    pm_arena_free(&vocab->arena);
    *vocab = (pm_vocab){0};
}
