/* tokenizer_config.json: which tokens are special, and the flags of added ones. */
#include "text/tokenizer_state.h"

#include <stdlib.h>

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

/* The text of a token that is given as a string or as an object with `content`; "" for null, which stands for none. */
static int token_text(const pm_tok_file *file, const json_t *value, const char *field, const char **out)
{
    const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
    bool none = !value || json_is_null(value);
    if (!none && !json_is_string(text))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: a token is neither a string nor an object with content",
                       file->path, field);
    *out = none ? "" : json_string_value(text);
    return PM_OK;
}

/* Marks the tokens that have a role as special. One that is not in the vocabulary has no row in the model either, so
 * that nothing follows from it; but an eos that cannot be sampled is a fault. */
static int load_roles(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root)
{
    static const char *const roles[] = {"eos_token", "bos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token"};
    for (size_t k = 0; k < PM_COUNT(roles); k++) {
        const char *name = "";
        int status = token_text(file, json_object_get(root, roles[k]), roles[k], &name);
        if (status != PM_OK)
            return status;
        if (!*name)
            continue;
        pm_token id = pm_tokenizer_id(tokenizer, name);
        if (k == 0 && id < 0)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: eos_token '%s' is not in the vocabulary", file->path, name);
        if (id >= 0 && pm_added_special(&tokenizer->added, &tokenizer->vocab, id, false) != PM_OK)
            return pm_fail_memory(file->err);
        if (k == 0)
            tokenizer->eos = id;
    }
    return PM_OK;
}

static int mark_further(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *value, const char *field)
{
    const char *name = "";
    int status = token_text(file, value, field, &name);
    pm_token id = status == PM_OK && *name ? pm_tokenizer_id(tokenizer, name) : -1;
    if (id >= 0 && pm_added_special(&tokenizer->added, &tokenizer->vocab, id, true) != PM_OK)
        return pm_fail_memory(file->err);
    return status;
}

/* Further special tokens, a list or an object of them; as in transformers, one that is an added token keeps its flags.
 */
static int load_further(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root, const char *field)
{
    const char *key;
    json_t *list = json_object_get(root, field), *value;
    size_t i;
    int status = PM_OK;
    if (list && !json_is_null(list) && !json_is_object(list) && !json_is_array(list))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s is neither a list nor an object", file->path, field);
    json_object_foreach(list, key, value)
    {
        if (status == PM_OK)
            status = mark_further(tokenizer, file, value, field);
    }
    json_array_foreach(list, i, value)
    {
        if (status == PM_OK)
            status = mark_further(tokenizer, file, value, field);
    }
    return status;
}

int pm_tok_load_config(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *root)
{
    bool split = false;
    int status = pm_tok_bool(file, root, "the top level", "split_special_tokens", false, &split);
    if (status == PM_OK && split)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: split_special_tokens true is not supported", file->path);
    if (status == PM_OK)
        status = load_config_added(tokenizer, file, json_object_get(root, "added_tokens_decoder"));
    if (status == PM_OK)
        status = load_roles(tokenizer, file, root);
    if (status == PM_OK)
        status = load_further(tokenizer, file, root, "additional_special_tokens");
    if (status == PM_OK)
        status = load_further(tokenizer, file, root, "extra_special_tokens");
    return status;
}
