/* Loading tokenizer.json and encoding. */
#include "text/tokenizer.h"
#include "files/config.h"
#include "text/tokenizer_parts.h"
#include "text/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- post-processor ---- */

/* The ids of one piece of a template: {"SpecialToken": {"id": name}}, spelt out in the field special_tokens. */
static int template_token(const pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *tokens,
                          const json_t *piece, pm_ids *ids)
{
    static const char where[] = "post_processor TemplateProcessing";
    const char *name;
    int status = pm_tok_object(file, piece, where, "id type_id");
    if (status == PM_OK)
        status = pm_tok_string(file, piece, where, "id", &name, NULL);
    if (status != PM_OK)
        return status;
    const json_t *list = json_object_get(json_object_get(tokens, name), "ids"), *value;
    if (!json_is_array(list))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: special_tokens does not give the ids of '%s'", file->path,
                       where, name);
    size_t i;
    json_array_foreach((json_t *)list, i, value)
    {
        pm_token id;
        if ((status = pm_tok_id(file, value, where, name, &id)) != PM_OK)
            return status;
        if ((size_t)id >= tokenizer->vocab.n || !tokenizer->vocab.entries[id].text)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: the id %d of '%s' is not in the vocabulary", file->path,
                           where, (int)id, name);
        if (pm_ids_add(ids, id) != PM_OK)
            return pm_fail_memory(file->err);
    }
    return PM_OK;
}

/* Puts `ids` before the ids that are there. */
static int prepend(pm_ids *to, const pm_ids *ids)
{
    pm_ids joined = {0};
    int status = PM_OK;
    for (size_t i = 0; i < ids->n && status == PM_OK; i++)
        status = pm_ids_add(&joined, ids->ids[i]);
    for (size_t i = 0; i < to->n && status == PM_OK; i++)
        status = pm_ids_add(&joined, to->ids[i]);
    if (status == PM_OK) {
        free(to->ids);
        *to = joined;
    } else {
        free(joined.ids);
    }
    return status;
}

/* The pieces of `single`: tokens, the text ("A") once, tokens. Of several templates, later ones go around earlier. */
static int load_template(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *component)
{
    static const char where[] = "post_processor TemplateProcessing";
    const json_t *single = json_object_get(component, "single"), *tokens = json_object_get(component, "special_tokens");
    const json_t *piece;
    pm_ids before = {0};
    bool text_seen = false;
    size_t i;
    int status = pm_tok_object(file, component, where, "type single pair special_tokens");
    if (status == PM_OK && !json_is_array(single))
        status = pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: single is not a list", file->path, where);
    json_array_foreach((json_t *)single, i, piece)
    {
        const json_t *token = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        if (status != PM_OK)
            break;
        status = pm_tok_object(file, piece, where, token ? "SpecialToken" : "Sequence");
        if (status == PM_OK && token)
            status = template_token(tokenizer, file, tokens, token, text_seen ? &tokenizer->after : &before);
        const char *id = json_string_value(json_object_get(text, "id"));
        if (status == PM_OK && !token && (!id || strcmp(id, "A") != 0 || text_seen))
            status = pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: single is supported with the sequence A once",
                             file->path, where);
        text_seen = text_seen || !token;
    }
    if (status == PM_OK && !text_seen)
        status = pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: single lacks the sequence A", file->path, where);
    if (status == PM_OK && prepend(&tokenizer->before, &before) != PM_OK)
        status = pm_fail_memory(file->err);
    free(before.ids);
    return status;
}

static int load_post(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    const char *type;
    int status = pm_tok_type(file, component, where, &type);
    if (status != PM_OK)
        return status;
    if (strcmp(type, "TemplateProcessing") == 0)
        return load_template(into, file, component);
    if (strcmp(type, "ByteLevel") != 0)
        return pm_tok_unsupported(file, where, type);
    /* All that it does concerns offsets, which are not kept. */
    return pm_tok_object(file, component, "post_processor ByteLevel", "type add_prefix_space trim_offsets use_regex");
}

/* ---- decoder ---- */

static int load_decoder(void *into, const pm_tok_file *file, const json_t *component, const char *where)
{
    int *n = into;
    const char *type;
    int status = pm_tok_type(file, component, where, &type);
    if (status == PM_OK && (strcmp(type, "ByteLevel") != 0 || ++*n > 1))
        return pm_tok_unsupported(file, where, type);
    return status == PM_OK
               ? pm_tok_object(file, component, "decoder ByteLevel", "type add_prefix_space trim_offsets use_regex")
               : status;
}

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
static int load_file(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    int decoders = 0;
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
        status = pm_tok_each(file, json_object_get(root, "decoder"), "decoder", "decoders", load_decoder, &decoders);
    if (status == PM_OK && !decoders)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: a decoder that is not ByteLevel is not supported",
                       file->path);
    if (status == PM_OK)
        status = pm_vocab_load(&tokenizer->vocab, file, json_object_get(model, "vocab"));
    if (status == PM_OK)
        status = load_added(tokenizer, file, json_object_get(root, "added_tokens"));
    if (status == PM_OK)
        status = pm_bpe_load(&tokenizer->bpe, &tokenizer->vocab, file, model);
    if (status == PM_OK)
        status = pm_tok_each(file, json_object_get(root, "post_processor"), "post_processor", "processors", load_post,
                             tokenizer);
    return status;
}

/* ---- tokenizer_config.json ---- */

/* The flags of added_tokens_decoder win over those of tokenizer.json, as in transformers. */
static int load_config_added(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *object)
{
    const char *key;
    json_t *value;
    if (!object || json_is_null(object))
        return PM_OK;
    int status = pm_tok_object(file, object, "added_tokens_decoder", NULL);
    json_object_foreach((json_t *)object, key, value)
    {
        char *end;
        if (status != PM_OK)
            break;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || id >= PM_TOKEN_MAX)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: added_tokens_decoder: '%s' is not an id in 0..%d", file->path,
                           key, PM_TOKEN_MAX - 1);
        status = pm_added_load(&tokenizer->added, &tokenizer->vocab, file, value, "added_tokens_decoder", (pm_token)id);
    }
    return status;
}

/* The token that a field of tokenizer_config.json names, as a string or as an object; NULL when it names none. */
static const char *named_token(const json_t *root, const char *field)
{
    const json_t *value = json_object_get(root, field);
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

/* Marks the tokens that have a role as special. One that is not in the vocabulary has no row in the model either, so
 * that nothing follows from it; but an eos that cannot be sampled is a fault. */
static int load_roles(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root)
{
    static const char *const roles[] = {"eos_token", "bos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token"};
    for (size_t k = 0; k < PM_COUNT(roles); k++) {
        const char *name = named_token(root, roles[k]);
        if (!name || !*name)
            continue;
        pm_token id = pm_tokenizer_id(tokenizer, name);
        if (k == 0 && id < 0)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: eos_token '%s' is not in the vocabulary", file->path, name);
        if (id >= 0 && pm_added_special(&tokenizer->added, &tokenizer->vocab, id) != PM_OK)
            return pm_fail_memory(file->err);
        if (k == 0)
            tokenizer->eos = id;
    }
    return PM_OK;
}

static int load_config(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root)
{
    bool split;
    int status = pm_tok_bool(file, root, "the top level", "split_special_tokens", false, &split);
    if (status == PM_OK && split)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: split_special_tokens true is not supported", file->path);
    if (status == PM_OK)
        status = load_config_added(tokenizer, file, json_object_get(root, "added_tokens_decoder"));
    return status == PM_OK ? load_roles(tokenizer, file, root) : status;
}

/* ---- public ---- */

int pm_tokenizer_open(pm_tokenizer **out, const char *dir, pm_error *err)
{
    pm_buf path = {0}, config_path = {0};
    json_t *root = NULL, *config = NULL;
    pm_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    int status;
    if (!tokenizer || pm_buf_printf(&path, "%s/tokenizer.json", dir) != PM_OK ||
        pm_buf_printf(&config_path, "%s/tokenizer_config.json", dir) != PM_OK) {
        status = pm_fail_memory(err);
        goto done;
    }
    tokenizer->eos = -1;
    pm_tok_file file = {path.data, err}, config_file = {config_path.data, err};
    if ((status = pm_json_file(path.data, 0, &root, err)) != PM_OK ||
        (status = load_file(tokenizer, &file, root)) != PM_OK)
        goto done;
    if (pm_is_file(config_path.data) && ((status = pm_json_file(config_path.data, 0, &config, err)) != PM_OK ||
                                         (status = load_config(tokenizer, &config_file, config)) != PM_OK))
        goto done;
    if ((status = pm_added_finish(&tokenizer->added, &tokenizer->normalizer, err)) != PM_OK ||
        (status = pm_vocab_finish(&tokenizer->vocab, &file)) != PM_OK)
        goto done;
    *out = tokenizer;
    tokenizer = NULL;
done:
    json_decref(root);
    json_decref(config);
    pm_buf_free(&path);
    pm_buf_free(&config_path);
    pm_tokenizer_close(tokenizer);
    return status;
}

void pm_tokenizer_close(pm_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    pm_bpe_free(&tokenizer->bpe);
    pm_splitter_free(&tokenizer->splitter);
    pm_added_free(&tokenizer->added);
    pm_vocab_free(&tokenizer->vocab);
    free(tokenizer->before.ids);
    free(tokenizer->after.ids);
    free(tokenizer);
}

int pm_tokenizer_vocab(const pm_tokenizer *tokenizer)
{
    return (int)tokenizer->vocab.n;
}

pm_token pm_tokenizer_id(const pm_tokenizer *tokenizer, const char *token)
{
    return pm_map_get(&tokenizer->vocab.ids, token, strlen(token), -1);
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
    pm_normalizer_work normalizer;
    pm_pieces pieces;
    pm_bpe_work bpe;
    pm_ids ids;
} encoding;

/* Text without added tokens: pieces, and the tokens of each. */
static int encode_plain(encoding *e, const char *text, size_t len, pm_error *err)
{
    int status = len ? pm_split(&e->tokenizer->splitter, text, len, &e->pieces, err) : PM_OK;
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
    return encode_plain(e, section->text + start, stop - start, err);
}

/* A section between tokens that are matched before normalisation: normalised, it may hold those matched after. */
static int encode_raw(encoding *e, const pm_section *section, size_t start, size_t stop, pm_error *err)
{
    pm_section raw = {section->text + start, stop - start, section->trust ? section->trust + start : NULL}, normal;
    int status = pm_normalize(&e->tokenizer->normalizer, &raw, &e->normalizer, &normal, err);
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
