/* Reading the components of tokenizer.json: nothing that is there is ignored. */
#include "text/tokenizer_parts.h"

#include <string.h>

/* True when `name` is one of the words of `list`. */
static bool listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list; *p;) {
        size_t word = strcspn(p, " ");
        if (word == len && memcmp(p, name, len) == 0)
            return true;
        p += word + (p[word] == ' ');
    }
    return false;
}

int pm_tok_object(const pm_tok_file *file, const json_t *value, const char *where, const char *fields)
{
    if (!json_is_object(value))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s is not an object", file->path, where);
    const char *key;
    json_t *field;
    json_object_foreach((json_t *)value, key, field)
    {
        if (fields && !listed(fields, key))
            return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: %s has a field '%s', which is not supported", file->path,
                           where, key);
    }
    return PM_OK;
}

int pm_tok_type(const pm_tok_file *file, const json_t *component, const char *where, const char **type)
{
    int status = pm_tok_object(file, component, where, NULL);
    return status == PM_OK ? pm_tok_string(file, component, where, "type", type, NULL) : status;
}

int pm_tok_bool(const pm_tok_file *file, const json_t *object, const char *where, const char *name, bool absent,
                bool *out)
{
    const json_t *value = json_object_get(object, name);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: %s is neither true nor false", file->path, where, name);
    *out = json_is_boolean(value) ? json_is_true(value) : absent;
    return PM_OK;
}

int pm_tok_string(const pm_tok_file *file, const json_t *object, const char *where, const char *name, const char **out,
                  size_t *len)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_string(value))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: %s is %s", file->path, where, name,
                       value ? "not a string" : "missing");
    *out = json_string_value(value);
    if (len)
        *len = json_string_length(value);
    return PM_OK;
}

int pm_tok_id(const pm_tok_file *file, const json_t *value, const char *where, const char *name, pm_token *out)
{
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (!json_is_integer(value))
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: the id of '%s' is not an integer", file->path, where, name);
    if (id < 0 || id >= PM_TOKEN_MAX)
        return pm_fail(file->err, PM_ERR_FORMAT, "%s: %s: the id %lld of '%s' is outside 0..%d", file->path, where,
                       (long long)id, name, PM_TOKEN_MAX - 1);
    *out = (pm_token)id;
    return PM_OK;
}

int pm_tok_unsupported(const pm_tok_file *file, const char *where, const char *component)
{
    return pm_fail(file->err, PM_ERR_UNSUPPORTED, "%s: tokenizer component '%s' (%s) is not supported", file->path,
                   component, where);
}

int pm_tok_each(const pm_tok_file *file, const json_t *component, const char *where, const char *parts,
                pm_tok_load *load, void *into)
{
    if (!component || json_is_null(component))
        return PM_OK;
    const char *type = "";
    int status = pm_tok_type(file, component, where, &type);
    if (status != PM_OK || strcmp(type, "Sequence") != 0)
        return status == PM_OK ? load(into, file, component, where) : status;
    char fields[64] = "type ";
    strncat(fields, parts, sizeof(fields) - strlen(fields) - 1);
    status = pm_tok_object(file, component, where, fields);
    const json_t *list = json_object_get(component, parts), *part;
    if (status == PM_OK && !json_is_array(list))
        status = pm_fail(file->err, PM_ERR_FORMAT, "%s: %s Sequence: %s is not a list", file->path, where, parts);
    size_t i;
    json_array_foreach((json_t *)list, i, part)
    {
        if (status == PM_OK)
            status = json_is_object(part)
                         ? pm_tok_each(file, part, where, parts, load, into)
                         : pm_fail(file->err, PM_ERR_FORMAT, "%s: %s Sequence: entry %zu of %s is not an object",
                                   file->path, where, i, parts);
    }
    return status;
}
