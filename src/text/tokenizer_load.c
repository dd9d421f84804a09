/* Loading tokenizer.json. */
#include "files/config.h"
#include "text/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 256 << 20 }; /* bytes of tokenizer.json; the largest known have 35 MB */

/* ---- tokenizer.json ---- */

static int load_added(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *list)
{
    const json_t *value;
    size_t i;
    if (list && !json_is_null(list) && !json_is_array(list))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: added_tokens is not a list", file->path);
    json_array_foreach((json_t *)list, i, value)
    {
        pm_token id;
        const char *content = json_string_value(json_object_get(value, "content"));
        int status = pm_tok_id(file, json_object_get(value, "id"), "added_tokens", content ? content : "", &id);
        if (status == PM_OK)
            status = pm_added_load(&tokenizer->added, &tokenizer->vocab, file, value, "added_tokens", id);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

/* A file without a type is BPE when it has merges, as in the library. */
static int check_model(const pm_tok_file *file, const json_t *model)
{
    const char *type = "BPE";
    int status = pm_tok_object(file, model, "model", NULL);
    if (status == PM_OK && (json_object_get(model, "type") || !json_object_get(model, "merges")))
        status = pm_tok_type(file, model, "model", &type);
    if (status == PM_OK && strcmp(type, "BPE") != 0)
        return pm_tok_unsupported(file, "model", type);
    return status;
}

/* Everything but what needs tokenizer_config.json. `truncation` and `padding` are the state in which somebody saved the
 * file, and transformers resets them before every call, so they mean nothing here. */
static int load_parts(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root, const pm_span *vocab,
                      const pm_span *merges)
{
    const json_t *model = json_object_get(root, "model");
    int status = pm_tok_object(file, root, "the top level",
                               "version truncation padding added_tokens normalizer pre_tokenizer post_processor "
                               "decoder model");
    if (status == PM_OK)
        status = check_model(file, model);
    if (status == PM_OK)
        status = pm_normalizer_load(&tokenizer->normalizer, file, json_object_get(root, "normalizer"));
    if (status == PM_OK)
        status = pm_splitter_load(&tokenizer->splitter, file, json_object_get(root, "pre_tokenizer"));
    if (status == PM_OK)
        status = pm_tok_decoder_load(&tokenizer->decoder, file, json_object_get(root, "decoder"));
    if (status == PM_OK)
        status = pm_vocab_load(&tokenizer->vocab, file, vocab);
    if (status == PM_OK)
        status = load_added(tokenizer, file, json_object_get(root, "added_tokens"));
    if (status == PM_OK)
        status = pm_bpe_load(&tokenizer->bpe, &tokenizer->vocab, file, model, merges);
    if (status == PM_OK)
        status = pm_tok_each(file, json_object_get(root, "post_processor"), "post_processor", "processors",
                             pm_tok_load_post, tokenizer);
    /* Where bytes are not all in the vocabulary, what falls back is the spelling. */
    if (tokenizer->bpe.byte_fallback && !pm_bpe_whole(&tokenizer->bpe))
        pm_splitter_spell(&tokenizer->splitter);
    tokenizer->bpe.bytes = tokenizer->splitter.byte_level;
    return status;
}

/* Appends text[0..len) to `out` with null in place of the two spans, but with their lines, so that the line in a
 * message stays right. */
static int without(const char *text, size_t len, const pm_span *vocab, const pm_span *merges, pm_buf *out)
{
    bool in_order = vocab->text && (!merges->text || vocab->text < merges->text);
    pm_span spans[] = {in_order ? *vocab : *merges, in_order ? *merges : *vocab};
    const char *at = text, *end = text + len;
    int status = PM_OK;
    for (size_t k = 0; k < PM_COUNT(spans) && status == PM_OK; k++) {
        const char *start = spans[k].text;
        if (!start)
            continue;
        const char *stop = start + spans[k].len;
        status = pm_buf_add(out, at, (size_t)(start - at));
        if (status == PM_OK)
            status = pm_buf_add(out, "null", 4);
        for (const char *p = start; status == PM_OK && (p = memchr(p, '\n', (size_t)(stop - p))); p++)
            status = pm_buf_add(out, "\n", 1);
        at = stop;
    }
    return status == PM_OK ? pm_buf_add(out, at, (size_t)(end - at)) : status;
}

/* Loads the text of a tokenizer.json. */
static int load_text(pm_tokenizer *tokenizer, const pm_tok_file *file, const char *text, size_t len)
{
    pm_buf rest = {0};
    pm_span vocab, merges;
    json_t *root = NULL;
    size_t bad;
    int status;
    if (!pm_utf8_valid(text, len, &bad))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s is not valid UTF-8 at byte %zu", file->path, bad);
    pm_cut_large(text, len, &vocab, &merges);
    if (without(text, len, &vocab, &merges, &rest) != PM_OK) {
        status = pm_fail_memory(file->err);
        goto done;
    }
    status = pm_json_text(file->path, rest.data, rest.len, &root, file->err);
    if (status == PM_ERR_INVALID) { /* to pm_json_text it is a caller's text */
        status = PM_ERR_FORMAT;
        if (file->err)
            file->err->code = PM_ERR_FORMAT;
    }
    if (status == PM_OK)
        status = load_parts(tokenizer, file, root, &vocab, &merges);
done:
    json_decref(root);
    pm_buf_free(&rest);
    return status;
}

static int load_file(pm_tokenizer *tokenizer, const pm_tok_file *file)
{
    pm_buf text = {0};
    int status = pm_read_file(file->path, FILE_MAX, &text, file->err);
    if (status == PM_OK)
        status = load_text(tokenizer, file, text.data, text.len);
    pm_buf_free(&text);
    return status;
}

/* The last step of loading, when all tokens are known. */
static int finish(pm_tokenizer *tokenizer, pm_error *err)
{
    int status = pm_added_finish(&tokenizer->added, &tokenizer->normalizer, err);
    if (status == PM_OK)
        pm_bpe_finish(&tokenizer->bpe, &tokenizer->vocab);
    return status;
}

/* ---- opening and closing ---- */

int pm_tokenizer_open(pm_tokenizer **out, const char *dir, pm_error *err)
{
    pm_buf path = {0}, config_path = {0};
    json_t *config = NULL;
    pm_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    int status;
    if (!tokenizer || pm_buf_printf(&path, "%s/tokenizer.json", dir) != PM_OK ||
        pm_buf_printf(&config_path, "%s/tokenizer_config.json", dir) != PM_OK) {
        status = pm_fail_memory(err);
        goto done;
    }
    tokenizer->eos = -1;
    pm_tok_file file = {path.data, err}, config_file = {config_path.data, err};
    if ((status = load_file(tokenizer, &file)) != PM_OK)
        goto done;
    if (pm_is_there(config_path.data) && ((status = pm_json_file(config_path.data, 0, &config, err)) != PM_OK ||
                                          (status = pm_tok_load_config(tokenizer, &config_file, config)) != PM_OK))
        goto done;
    if ((status = finish(tokenizer, err)) != PM_OK)
        goto done;
    *out = tokenizer;
    tokenizer = NULL;
done:
    json_decref(config);
    pm_buf_free(&path);
    pm_buf_free(&config_path);
    pm_tokenizer_close(tokenizer);
    return status;
}

int pm_tokenizer_read(pm_tokenizer **out, const char *name, const char *text, size_t len, pm_error *err)
{
    pm_tok_file file = {name, err};
    pm_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (!tokenizer)
        return pm_fail_memory(err);
    tokenizer->eos = -1;
    int status = load_text(tokenizer, &file, text, len);
    if (status == PM_OK)
        status = finish(tokenizer, err);
    if (status == PM_OK)
        *out = tokenizer;
    else
        pm_tokenizer_close(tokenizer);
    return status;
}

void pm_tokenizer_close(pm_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    pm_bpe_free(&tokenizer->bpe);
    pm_tok_decoder_free(&tokenizer->decoder);
    pm_normalizer_free(&tokenizer->normalizer);
    pm_splitter_free(&tokenizer->splitter);
    pm_added_free(&tokenizer->added);
    pm_vocab_free(&tokenizer->vocab);
    free(tokenizer->before.ids);
    free(tokenizer->after.ids);
    free(tokenizer);
}
