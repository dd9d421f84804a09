/* The streaming detokeniser: tokens pass through the steps of the decoder, and each step hands on what it is sure of.
 */
#include "text/tokenizer_parts.h"
#include "text/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

/* What a step remembers. */
typedef struct pm_detok_state {
    pm_buf text;  /* what it makes of the token at hand */
    pm_buf held;  /* ByteFallback: the bytes of a run; BPEDecoder and CTC: the token before */
    size_t seen;  /* tokens so far */
    size_t count; /* of text without ends, Replace: how much of what is looked for came last; Strip: cut at the start */
    size_t tail;  /* Strip of text without ends: characters at the end that may be cut */
    bool inside;  /* Strip of text without ends: the start is over */
    pm_matcher matcher;
} pm_detok_state;

/* A token, or of text without ends a part, on its way through the steps. */
typedef struct passing {
    pm_detok *detok;
    const pm_tok_decoder *decoder;
    pm_buf *out;
    pm_error *err;
} passing;

int pm_detok_init(pm_detok *detok, const pm_tokenizer *tokenizer, bool special, pm_error *err)
{
    const pm_tok_decoder *decoder = &tokenizer->decoder;
    bool plain = decoder->n == 1 && decoder->steps[0].kind == PM_DECODE_BYTE_LEVEL;
    *detok = (pm_detok){.tokenizer = tokenizer, .special = special};
    if (plain)
        return PM_OK;
    detok->states = calloc((size_t)decoder->n + 1, sizeof(*detok->states));
    return detok->states ? PM_OK : pm_fail_memory(err);
}

void pm_detok_free(pm_detok *detok)
{
    for (int k = 0; detok->states && k < detok->tokenizer->decoder.n; k++) {
        pm_buf_free(&detok->states[k].text);
        pm_buf_free(&detok->states[k].held);
        pm_matcher_free(&detok->states[k].matcher);
    }
    free(detok->states);
    *detok = (pm_detok){0};
}

/* ---- bytes to characters ---- */

/* How many bytes the character that starts with `byte` has; 0 when none starts so (Unicode Standard, table 3-7). */
static int character_length(uint8_t byte)
{
    return byte < 0x80 ? 1 : byte < 0xC2 ? 0 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : byte < 0xF5 ? 4 : 0;
}

/* True when `byte` may follow the held bytes: only the second byte has limits of its own. */
static bool continues(const pm_detok *detok, uint8_t byte)
{
    uint8_t first = detok->held[0], low = 0x80, high = 0xBF;
    if (detok->n_held == 1) {
        low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    }
    return byte >= low && byte <= high;
}

/* One U+FFFD for each maximal part of an ill-formed sequence, the practice that the Unicode Standard recommends. */
static int push_byte(pm_detok *detok, uint8_t byte, pm_buf *out)
{
    if (detok->n_held && !continues(detok, byte)) {
        detok->n_held = 0;
        if (pm_buf_add(out, REPLACEMENT, 3) != PM_OK)
            return PM_ERR_MEMORY;
    }
    if (!detok->n_held && character_length(byte) == 0)
        return pm_buf_add(out, REPLACEMENT, 3);
    detok->held[detok->n_held++] = byte;
    if (detok->n_held < character_length(detok->held[0]))
        return PM_OK;
    int n = detok->n_held;
    detok->n_held = 0;
    return pm_buf_add(out, detok->held, (size_t)n);
}

/* The bytes that a token spells in the byte-level alphabet; one with a character from outside stands for its own UTF-8,
 * as in the library. */
static int push_spelt(pm_detok *detok, const char *text, size_t len, pm_buf *out)
{
    bool spelt = true;
    int status = PM_OK;
    for (size_t i = 0, n; i < len && spelt; i += n)
        spelt = pm_char_byte(pm_char_at(text + i, &n)) >= 0;
    for (size_t i = 0, n = 1; i < len && status == PM_OK; i += n) {
        int byte = spelt ? pm_char_byte(pm_char_at(text + i, &n)) : (uint8_t)text[i];
        status = push_byte(detok, (uint8_t)byte, out);
    }
    return status;
}

/* ---- the steps on tokens ---- */

static int give(const passing *p, int k, const char *text, size_t len);

static int too_long(const passing *p)
{
    return pm_fail(p->err, PM_ERR_LIMIT, "tokenizer.json: the decoder makes more than %d bytes of one token",
                   PM_GROWN_MAX);
}

static int replace_matches(const passing *p, int k, const char *text, size_t len)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    pm_matches matches = {&step->pattern, &state->matcher, text, len, len, 0, 0, false};
    pm_range match;
    size_t same = 0;
    int found;
    state->text.len = 0;
    while ((found = pm_matches_next(&matches, &match, p->err)) > 0) {
        if (pm_buf_add(&state->text, text + same, match.start - same) != PM_OK ||
            pm_buf_add(&state->text, step->to, step->to_len) != PM_OK)
            return pm_fail_memory(p->err);
        if (state->text.len > PM_GROWN_MAX)
            return too_long(p);
        same = match.end;
    }
    if (found < 0)
        return found;
    if (pm_buf_add(&state->text, text + same, len - same) != PM_OK)
        return pm_fail_memory(p->err);
    return give(p, k + 1, state->text.data, state->text.len);
}

static bool starts_with(const char *text, size_t len, const char *start, size_t n)
{
    return len >= n && memcmp(text, start, n) == 0;
}

static int strip_token(const passing *p, int k, const char *text, size_t len)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    size_t n = step->from_len;
    for (size_t i = 0; i < step->start && starts_with(text, len, step->from, n); i++) {
        text += n;
        len -= n;
    }
    for (size_t i = 0; i < step->stop && len >= n && memcmp(text + len - n, step->from, n) == 0; i++)
        len -= n;
    return give(p, k + 1, text, len);
}

/* The replacement becomes a space, or with `drop` nothing. */
static int replace_spaces(const passing *p, int k, const char *text, size_t len, bool drop)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_buf *out = &p->detok->states[k].text;
    out->len = 0;
    for (size_t i = 0, n; i < len; i += n) {
        pm_char_at(text + i, &n);
        bool space = n == step->from_len && memcmp(text + i, step->from, n) == 0;
        if ((!space || !drop) && pm_buf_add(out, space ? " " : text + i, space ? 1 : n) != PM_OK)
            return pm_fail_memory(p->err);
    }
    return give(p, k + 1, out->data ? out->data : "", out->len);
}

/* The byte that a token such as "<0x0A>" stands for; -1 when it stands for none. */
static int fallback_byte(const char *text, size_t len)
{
    int value = 0;
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = text[i] | 32;
        int digit = text[i] >= '0' && text[i] <= '9' ? text[i] - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0 && !(i == 3 && text[i] == '+')) /* Rust takes a sign */
            return -1;
        value = value * 16 + (digit > 0 ? digit : 0);
    }
    return value;
}

/* The end of a run of bytes: its text as one token, or U+FFFD for each byte when it is none. */
static int end_run(const passing *p, int k)
{
    pm_buf *run = &p->detok->states[k].held;
    size_t n = run->len;
    int status = PM_OK;
    run->len = 0;
    if (n && pm_utf8_valid(run->data, n, NULL))
        return give(p, k + 1, run->data, n);
    for (size_t i = 0; i < n && status == PM_OK; i++)
        status = give(p, k + 1, REPLACEMENT, 3);
    return status;
}

static int fall_back(const passing *p, int k, const char *text, size_t len)
{
    int byte = fallback_byte(text, len);
    char c = (char)byte;
    if (byte >= 0)
        return pm_buf_add(&p->detok->states[k].held, &c, 1) == PM_OK ? PM_OK : pm_fail_memory(p->err);
    int status = end_run(p, k);
    return status == PM_OK ? give(p, k + 1, text, len) : status;
}

/* Replaces every `from` in the text. */
static int replace_all(pm_buf *text, const char *from, const char *to)
{
    pm_buf made = {0};
    size_t n = strlen(from), at = 0;
    int status = PM_OK;
    while (n && at < text->len && status == PM_OK) {
        if (starts_with(text->data + at, text->len - at, from, n)) {
            status = pm_buf_add(&made, to, strlen(to));
            at += n;
        } else {
            status = pm_buf_add(&made, text->data + at++, 1);
        }
    }
    if (status == PM_OK && at < text->len)
        status = pm_buf_add(&made, text->data + at, text->len - at);
    if (status == PM_OK)
        status = pm_buf_reserve(&made, 0);
    pm_buf_free(status == PM_OK ? text : &made);
    if (status == PM_OK)
        *text = made;
    return status;
}

/* What the library's WordPiece and CTC call cleanup, in its order. */
static int clean_up(pm_buf *text)
{
    static const char *const pairs[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    int status = PM_OK;
    for (size_t i = 0; i < PM_COUNT(pairs) && status == PM_OK; i++)
        status = replace_all(text, pairs[i][0], pairs[i][1]);
    return status;
}

/* The token before, whose end of word becomes a space, or nothing at the end of the text; then the token is kept. */
static int end_of_word(const passing *p, int k, const char *text, size_t len, bool last)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    int status = PM_OK;
    if (state->seen++) {
        if (replace_all(&state->held, step->from, last ? "" : " ") != PM_OK)
            return pm_fail_memory(p->err);
        status = give(p, k + 1, state->held.data, state->held.len);
    }
    state->held.len = 0;
    if (status == PM_OK && pm_buf_add(&state->held, text, len) != PM_OK)
        return pm_fail_memory(p->err);
    return status;
}

static int join_word(const passing *p, int k, const char *text, size_t len)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    bool first = state->seen++ == 0, joins = starts_with(text, len, step->from, step->from_len);
    size_t skip = !first && joins ? step->from_len : 0;
    state->text.len = 0;
    if ((!first && !joins && pm_buf_add(&state->text, " ", 1) != PM_OK) ||
        pm_buf_add(&state->text, text + skip, len - skip) != PM_OK || (step->flag && clean_up(&state->text) != PM_OK))
        return pm_fail_memory(p->err);
    return give(p, k + 1, state->text.data, state->text.len);
}

/* Repeated tokens count once; a token that nothing is left of is none. */
static int collapse(const passing *p, int k, const char *text, size_t len)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    if (state->seen && state->held.len == len && memcmp(state->held.data, text, len) == 0)
        return PM_OK;
    state->seen++;
    state->held.len = state->text.len = 0;
    if (pm_buf_add(&state->held, text, len) != PM_OK || pm_buf_add(&state->text, text, len) != PM_OK ||
        replace_all(&state->text, step->from, "") != PM_OK ||
        (step->flag && (clean_up(&state->text) != PM_OK || replace_all(&state->text, step->to, " ") != PM_OK)))
        return pm_fail_memory(p->err);
    return state->text.len ? give(p, k + 1, state->text.data, state->text.len) : PM_OK;
}

/* Step k takes one token. */
static int take_token(const passing *p, int k, const char *text, size_t len)
{
    pm_detok_state *state = &p->detok->states[k];
    int status;
    switch (p->decoder->steps[k].kind) {
    case PM_DECODE_REPLACE: return replace_matches(p, k, text, len);
    case PM_DECODE_STRIP: return strip_token(p, k, text, len);
    case PM_DECODE_METASPACE: return replace_spaces(p, k, text, len, p->decoder->steps[k].flag && !state->seen++);
    case PM_DECODE_BYTE_FALLBACK: return fall_back(p, k, text, len);
    case PM_DECODE_BPE: return end_of_word(p, k, text, len, false);
    case PM_DECODE_WORDPIECE: return join_word(p, k, text, len);
    case PM_DECODE_CTC: return collapse(p, k, text, len);
    case PM_DECODE_FUSE: return give(p, k + 1, text, len);
    case PM_DECODE_JOIN:
        status = state->seen++ ? give(p, k + 1, " ", 1) : PM_OK;
        return status == PM_OK ? give(p, k + 1, text, len) : status;
    case PM_DECODE_BYTE_LEVEL:
        state->text.len = 0;
        if (push_spelt(p->detok, text, len, &state->text) != PM_OK)
            return pm_fail_memory(p->err);
        return state->text.len ? give(p, k + 1, state->text.data, state->text.len) : PM_OK;
    }
    return PM_OK;
}

/* ---- the steps on text without ends ---- */

/* What may yet become what is looked for is always its first `count` bytes, so that nothing has to be kept. */
static int replace_in_stream(const passing *p, int k, const char *text, size_t len)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    int status = PM_OK;
    state->text.len = 0;
    for (size_t i = 0; i < len && status == PM_OK; i++) {
        while (state->count && text[i] != step->from[state->count] && status == PM_OK) {
            size_t border = step->border[state->count];
            status = pm_buf_add(&state->text, step->from, state->count - border);
            state->count = border;
        }
        if (text[i] == step->from[state->count])
            state->count++;
        else if (status == PM_OK)
            status = pm_buf_add(&state->text, text + i, 1);
        if (state->count == step->from_len && status == PM_OK) {
            status = pm_buf_add(&state->text, step->to, step->to_len);
            state->count = 0;
        }
        if (state->text.len > PM_GROWN_MAX)
            return too_long(p);
    }
    if (status != PM_OK)
        return pm_fail_memory(p->err);
    return state->text.len ? give(p, k + 1, state->text.data, state->text.len) : PM_OK;
}

static int strip_in_stream(const passing *p, int k, const char *text, size_t len)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    int status = PM_OK;
    state->text.len = 0;
    for (size_t i = 0, n; i < len && status == PM_OK; i += n) {
        pm_char_at(text + i, &n);
        bool content = n == step->from_len && memcmp(text + i, step->from, n) == 0;
        if (content && !state->inside && state->count < step->start) {
            state->count++;
            continue;
        }
        state->inside = true;
        if (content && state->tail < step->stop) {
            state->tail++;
            continue;
        }
        for (; !content && state->tail && status == PM_OK; state->tail--)
            status = pm_buf_add(&state->text, step->from, step->from_len);
        if (status == PM_OK)
            status = pm_buf_add(&state->text, text + i, n);
    }
    if (status != PM_OK)
        return pm_fail_memory(p->err);
    return state->text.len ? give(p, k + 1, state->text.data, state->text.len) : PM_OK;
}

/* Hands a token, or a part of text without ends, to step k; behind the last it is final. */
static int give(const passing *p, int k, const char *text, size_t len)
{
    if (k == p->decoder->n)
        return pm_buf_add(p->out, text, len) == PM_OK ? PM_OK : pm_fail_memory(p->err);
    if (k < p->decoder->fused)
        return take_token(p, k, text, len);
    switch (p->decoder->steps[k].kind) {
    case PM_DECODE_REPLACE: return replace_in_stream(p, k, text, len);
    case PM_DECODE_STRIP: return strip_in_stream(p, k, text, len);
    case PM_DECODE_METASPACE: return replace_spaces(p, k, text, len, p->decoder->steps[k].flag);
    default: return give(p, k + 1, text, len);
    }
}

/* Step k hands on what it still holds, at the end of the text. */
static int end_step(const passing *p, int k)
{
    const pm_decode_step *step = &p->decoder->steps[k];
    pm_detok_state *state = &p->detok->states[k];
    size_t n = state->count;
    int held = p->detok->n_held, status;
    switch (step->kind) {
    case PM_DECODE_BYTE_FALLBACK: return end_run(p, k);
    case PM_DECODE_BPE:
        status = end_of_word(p, k, "", 0, true);
        state->seen = 0;
        return status;
    case PM_DECODE_BYTE_LEVEL: p->detok->n_held = 0; return held ? give(p, k + 1, REPLACEMENT, 3) : PM_OK;
    case PM_DECODE_REPLACE:
        state->count = 0;
        return k >= p->decoder->fused && n ? give(p, k + 1, step->from, n) : PM_OK;
    default: return PM_OK;
    }
}

/* ---- tokens to text ---- */

int pm_detok_push(pm_detok *detok, pm_token id, pm_buf *out, pm_error *err)
{
    const pm_vocab *vocab = &detok->tokenizer->vocab;
    if (id < 0 || (size_t)id >= vocab->n || !vocab->entries[id].text)
        return pm_fail(err, PM_ERR_INVALID, "token id %d is not in the vocabulary of %zu tokens", (int)id, vocab->n);
    const pm_vocab_entry *entry = &vocab->entries[id];
    if (entry->special && !detok->special)
        return PM_OK;
    size_t before = out->len;
    int status;
    if (detok->states) {
        passing p = {detok, &detok->tokenizer->decoder, out, err};
        status = give(&p, 0, entry->text, entry->len);
    } else {
        status = push_spelt(detok, entry->text, entry->len, out) == PM_OK ? PM_OK : pm_fail_memory(err);
    }
    if (status != PM_OK)
        out->len = before;
    return status;
}

int pm_detok_finish(pm_detok *detok, pm_buf *out, pm_error *err)
{
    passing p = {detok, &detok->tokenizer->decoder, out, err};
    int status = PM_OK;
    if (!detok->states) {
        if (detok->n_held && pm_buf_add(out, REPLACEMENT, 3) != PM_OK)
            return pm_fail_memory(err);
        detok->n_held = 0;
    }
    for (int k = 0; detok->states && k < p.decoder->n && status == PM_OK; k++)
        status = end_step(&p, k);
    return status;
}

/* The text of a token that stands n times in a row. */
static int repeat(const pm_tokenizer *tokenizer, pm_token id, int n, pm_buf *out, pm_error *err)
{
    pm_detok detok;
    int status = pm_detok_init(&detok, tokenizer, false, err);
    for (int i = 0; i < n && status == PM_OK; i++)
        status = pm_detok_push(&detok, id, out, err);
    if (status == PM_OK)
        status = pm_detok_finish(&detok, out, err);
    pm_detok_free(&detok);
    return status;
}

int pm_tokenizer_bytes(const pm_tokenizer *tokenizer, pm_token id, pm_buf *out, pm_error *err)
{
    const pm_tok_decoder *decoder = &tokenizer->decoder;
    if (id < 0 || (size_t)id >= tokenizer->vocab.n)
        return pm_fail(err, PM_ERR_INVALID, "token id %d is not in the vocabulary of %zu tokens", (int)id,
                       tokenizer->vocab.n);
    const pm_vocab_entry *entry = &tokenizer->vocab.entries[id];
    bool bytes = decoder->n == 1 && decoder->steps[0].kind == PM_DECODE_BYTE_LEVEL;
    int byte = -1;
    if (entry->special || !entry->text)
        return PM_OK;
    for (int k = 0; k < decoder->n && byte < 0; k++)
        if (decoder->steps[k].kind == PM_DECODE_BYTE_FALLBACK)
            byte = fallback_byte(entry->text, entry->len);
    if (byte >= 0)
        return pm_buf_add(out, &(char){(char)byte}, 1) == PM_OK ? PM_OK : pm_fail_memory(err);
    for (size_t i = 0, n; i < entry->len && bytes; i += n)
        bytes = pm_char_byte(pm_char_at(entry->text + i, &n)) >= 0;
    for (size_t i = 0, n; i < entry->len && bytes; i += n) {
        char c = (char)pm_char_byte(pm_char_at(entry->text + i, &n));
        if (pm_buf_add(out, &c, 1) != PM_OK)
            return pm_fail_memory(err);
    }
    if (bytes)
        return PM_OK;
    /* What the second of two adds to the first: decoders treat the start of a text in their own ways. */
    pm_buf one = {0}, two = {0};
    int status = repeat(tokenizer, id, 1, &one, err);
    if (status == PM_OK)
        status = repeat(tokenizer, id, 2, &two, err);
    if (status == PM_OK && two.len > one.len && pm_buf_add(out, two.data + one.len, two.len - one.len) != PM_OK)
        status = pm_fail_memory(err);
    pm_buf_free(&one);
    pm_buf_free(&two);
    return status;
}
