/* What a tokeniser knows, and encoding. */
#include "text/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

int pm_tokenizer_vocab(const pm_tokenizer *tokenizer)
{
    return (int)tokenizer->vocab.n;
}

pm_token pm_tokenizer_id(const pm_tokenizer *tokenizer, const char *token)
{
    return pm_map_get(&tokenizer->vocab.ids, token, strlen(token), -1);
}

const char *pm_tokenizer_token(const pm_tokenizer *tokenizer, pm_token id)
{
    return id >= 0 && (size_t)id < tokenizer->vocab.n ? tokenizer->vocab.entries[id].text : NULL;
}

pm_token pm_tokenizer_eos(const pm_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool pm_tokenizer_special(const pm_tokenizer *tokenizer, pm_token id)
{
    return id >= 0 && (size_t)id < tokenizer->vocab.n && tokenizer->vocab.entries[id].special;
}

/* ---- encoding ---- */

/* Memory of one call. */
typedef struct encoding {
    const pm_tokenizer *tokenizer;
    bool control;
    bool first; /* the section at hand is the start of the text */
    pm_normalizer_work normalizer;
    pm_pieces pieces;
    pm_bpe_work bpe;
    pm_ids ids;
} encoding;

/* Text without added tokens: pieces, and the tokens of each. */
static int encode_plain(encoding *e, const char *text, size_t len, bool first, pm_error *err)
{
    int status = len ? pm_split(&e->tokenizer->splitter, text, len, first, &e->pieces, err) : PM_OK;
    for (size_t i = 0; len && i < e->pieces.n && status == PM_OK; i++) {
        pm_range piece = e->pieces.ranges[i];
        status = pm_bpe_encode(&e->tokenizer->bpe, &e->tokenizer->vocab, e->pieces.text + piece.start,
                               piece.end - piece.start, &e->bpe, &e->ids, err);
    }
    return status;
}

/* Encodes section[start..stop), by `plain`. */
typedef int encode_text(encoding *e, const pm_section *section, size_t start, size_t stop, pm_error *err);

/* Encodes a section: the added tokens of `set` that it holds, and the text between them. */
static int encode_section(encoding *e, const pm_added_set *set, const pm_section *section, encode_text *text,
                          pm_error *err)
{
    pm_added_search search = {.set = set, .section = *section};
    const pm_added_token *token;
    size_t done = 0, start, stop;
    int status = PM_OK;
    while (e->control && (token = pm_added_next(&search, &start, &stop))) {
        if (done < start && (status = text(e, section, done, start, err)) != PM_OK)
            return status;
        if (pm_ids_add(&e->ids, token->id) != PM_OK)
            return pm_fail_memory(err);
        done = stop;
    }
    return done < section->len ? text(e, section, done, section->len, err) : PM_OK;
}

static int encode_normalized(encoding *e, const pm_section *section, size_t start, size_t stop, pm_error *err)
{
    return encode_plain(e, section->text + start, stop - start, e->first && start == 0, err);
}

/* A section between tokens that are matched before normalisation: normalised, it may hold those matched after. */
static int encode_raw(encoding *e, const pm_section *section, size_t start, size_t stop, pm_error *err)
{
    pm_section raw = {section->text + start, stop - start, section->trust ? section->trust + start : NULL}, normal;
    int status = pm_normalize(&e->tokenizer->normalizer, &raw, &e->normalizer, &normal, err);
    e->first = start == 0 && !e->normalizer.lost;
    return status == PM_OK ? encode_section(e, &e->tokenizer->added.normal, &normal, encode_normalized, err) : status;
}

static int add_all(pm_ids *to, const pm_ids *ids)
{
    int status = PM_OK;
    for (size_t i = 0; i < ids->n && status == PM_OK; i++)
        status = pm_ids_add(to, ids->ids[i]);
    return status;
}

int pm_tokenizer_encode(const pm_tokenizer *tokenizer, const char *text, size_t len, const pm_encode_options *options,
                        pm_token **ids, size_t *n, pm_error *err)
{
    encoding e = {.tokenizer = tokenizer, .control = options->control};
    size_t bad;
    int status;
    if (len > PM_TEXT_MAX)
        return pm_fail(err, PM_ERR_LIMIT, "a text of %zu bytes is longer than the %d that can be encoded", len,
                       PM_TEXT_MAX);
    if (!pm_utf8_valid(text, len, &bad))
        return pm_fail(err, PM_ERR_INVALID, "the text is not valid UTF-8 at byte %zu", bad);
    pm_section whole = {text, len, options->trust};
    if (pm_ids_add(&e.ids, 0) != PM_OK ||
        (e.ids.n = 0, options->post && add_all(&e.ids, &tokenizer->before) != PM_OK)) {
        status = pm_fail_memory(err);
        goto done;
    }
    if ((status = encode_section(&e, &tokenizer->added.raw, &whole, encode_raw, err)) != PM_OK)
        goto done;
    if (options->post && add_all(&e.ids, &tokenizer->after) != PM_OK) {
        status = pm_fail_memory(err);
        goto done;
    }
    *ids = e.ids.ids;
    *n = e.ids.n;
    e.ids = (pm_ids){0};
done:
    free(e.ids.ids);
    pm_normalizer_work_free(&e.normalizer);
    pm_pieces_free(&e.pieces);
    pm_bpe_work_free(&e.bpe);
    return status;
}

int pm_tokenizer_ids(const pm_tokenizer *tokenizer, const char *text, size_t len, bool plain, pm_prompt *out,
                     pm_error *err)
{
    pm_prompt prompt = {0};
    pm_encode_options options = {.control = !plain, .post = !plain};
    int status = pm_tokenizer_encode(tokenizer, text, len, &options, &prompt.ids, &prompt.n, err);
    prompt.mark = prompt.n;
    if (status == PM_OK)
        *out = prompt;
    return status;
}

/* ---- decoding ---- */

int pm_tokenizer_text(const pm_tokenizer *tokenizer, const pm_token *ids, size_t n, bool special, char **text,
                      size_t *len, pm_error *err)
{
    pm_buf buf = {0};
    pm_detok detok = {0};
    int status = pm_detok_init(&detok, tokenizer, special, err);
    if (status == PM_OK && pm_buf_reserve(&buf, 0) != PM_OK)
        status = pm_fail_memory(err);
    for (size_t i = 0; status == PM_OK && i < n; i++)
        status = pm_detok_push(&detok, ids[i], &buf, err);
    if (status == PM_OK)
        status = pm_detok_finish(&detok, &buf, err);
    pm_detok_free(&detok);
    if (status != PM_OK) {
        pm_buf_free(&buf);
        return status;
    }
    *text = buf.data;
    *len = buf.len;
    return PM_OK;
}
