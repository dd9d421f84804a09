/* Post-processors: the tokens before and after a text, such as a BOS. */
#include "text/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

static const char in_template[] = "post_processor TemplateProcessing";
static const char in_single[] = "post_processor TemplateProcessing: single";
static const char in_tokens[] = "post_processor TemplateProcessing: special_tokens";

/* The ids of one piece of a template: {"SpecialToken": {"id": name}}, spelt out in the field special_tokens. */
static int template_token(const pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *tokens,
                          const json_t *piece, pm_ids *ids)
{
    const char *name;
    int status = pm_tok_object(file, piece, in_single, "id type_id");
    if (status == PM_OK)
        status = pm_tok_string(file, piece, in_single, "id", &name, NULL);
    if (status != PM_OK)
        return status;
    const json_t *list = json_object_get(json_object_get(tokens, name), "ids"), *value;
    if (!json_is_array(list))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: special_tokens does not give the ids of '%s'", file->path,
                       in_template, name);
    size_t i;
    json_array_foreach((json_t *)list, i, value)
    {
        pm_token id;
        if ((status = pm_tok_id(file, value, in_tokens, name, &id)) != PM_OK)
            return status;
        if ((size_t)id >= tokenizer->vocab.n || !tokenizer->vocab.entries[id].text)
            return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: the id %d of '%s' is not in the vocabulary", file->path,
                           in_tokens, (int)id, name);
        if (pm_ids_add(ids, id) != PM_OK)
            return pm_fail_memory(file->err);
    }
    return PM_OK;
}

/* The pieces of `single`: tokens, the text ("A") once, tokens. The library takes what one template made for a pair when
 * it comes to the next, so there can be only one. */
static int load_template(pm_tokenizer *tokenizer, const pm_tok_file *file, const json_t *component)
{
    const json_t *single = json_object_get(component, "single"), *tokens = json_object_get(component, "special_tokens");
    const json_t *piece;
    bool text_seen = false;
    size_t i;
    int status = pm_tok_object(file, component, in_template, "type single pair special_tokens");
    if (status == PM_OK && tokenizer->has_template)
        return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: a second %s is not supported", file->path, in_template);
    tokenizer->has_template = true;
    if (status == PM_OK && !json_is_array(single))
        status = pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: single is not a list", file->path, in_template);
    json_array_foreach((json_t *)single, i, piece)
    {
        const json_t *token = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        if (status != PM_OK)
            break;
        status = pm_tok_object(file, piece, in_single, token ? "SpecialToken" : "Sequence");
        if (status == PM_OK && token)
            status = template_token(tokenizer, file, tokens, token, text_seen ? &tokenizer->after : &tokenizer->before);
        const char *id = json_string_value(json_object_get(text, "id"));
        if (status == PM_OK && !token && (!id || strcmp(id, "A") != 0 || text_seen))
            status = pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: single is supported with the sequence A once",
                             file->path, in_template);
        text_seen = text_seen || !token;
    }
    if (status == PM_OK && !text_seen)
        status = pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s: single lacks the sequence A", file->path, in_template);
    return status;
}

int pm_tok_load_post(void *into, const pm_tok_file *file, const json_t *component, const char *where)
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
