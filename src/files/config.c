/* config.json: typed reads by field name. */
#include "files/config.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pm_config_open(pm_config **out, const char *dir, pm_error *err)
{
    pm_buf path = {0};
    json_t *root = NULL;
    pm_config *config = calloc(1, sizeof(*config));
    int status = config ? pm_buf_printf(&path, "%s/config.json", dir) : PM_ERR_MEMORY;
    if (status != PM_OK) {
        status = pm_fail_memory(err);
        goto done;
    }
    status = pm_json_file(path.data, 0, &root, err);
    if (status != PM_OK)
        goto done;
    json_t *text = json_object_get(root, "text_config");
    if (text && !json_is_null(text) && !json_is_object(text)) {
        status = pm_fail(err, PM_ERR_FORMAT, "%s: text_config is not an object", path.data);
        goto done;
    }
    *config = (pm_config){.path = path.data, .root = root, .text = json_is_object(text) ? text : root};
    *out = config;
    config = NULL;
    root = NULL;
    path = (pm_buf){0};
done:
    json_decref(root);
    pm_buf_free(&path);
    free(config);
    return status;
}

void pm_config_close(pm_config *config)
{
    if (!config)
        return;
    json_decref(config->root);
    free(config->path);
    free(config);
}

/* Walks a dotted path down from `object`; NULL when a part is absent, null, or not inside an object. */
static const json_t *walk(const json_t *object, const char *field)
{
    while (object) {
        size_t n = strcspn(field, ".");
        object = json_object_getn(object, field, n);
        if (!field[n])
            break;
        field += n + 1;
    }
    return json_is_null(object) ? NULL : object;
}

const json_t *pm_config_get(const pm_config *config, const char *field)
{
    const json_t *value = walk(config->text, field);
    return value ? value : walk(config->root, field);
}

/* Equal values; 8 and 8.0 are. */
static bool same_value(const json_t *a, const json_t *b)
{
    bool numbers = json_is_number(a) && json_is_number(b);
    return numbers ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

int pm_config_alias(const pm_config *config, const char *names, char out[PM_FIELD_MAX], pm_error *err)
{
    const json_t *first = NULL;
    snprintf(out, PM_FIELD_MAX, "%.*s", (int)strcspn(names, "|"), names);
    for (const char *p = names; *p; p += strcspn(p, "|"), p += *p == '|') {
        char name[PM_FIELD_MAX];
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(p, "|"), p);
        const json_t *value = pm_config_get(config, name);
        if (first && value && !same_value(first, value))
            return pm_fail(err, PM_ERR_FORMAT, "%s: %s and %s are the same field and differ", config->path, out, name);
        if (value && !first)
            memcpy(out, name, sizeof(name));
        first = first ? first : value;
    }
    return PM_OK;
}

static int fail_type(const pm_config *config, const char *field, const char *expected, pm_error *err)
{
    return pm_fail(err, PM_ERR_FORMAT, "%s: %s is not %s", config->path, field, expected);
}

/* PM_OK when the field is there. */
static int require(const pm_config *config, const char *field, pm_error *err)
{
    if (pm_config_get(config, field))
        return PM_OK;
    return pm_fail(err, PM_ERR_FORMAT, "%s lacks the field %s", config->path, field);
}

int pm_config_int_or(const pm_config *config, const char *field, int64_t min, int64_t max, int absent, int *out,
                     pm_error *err)
{
    const json_t *value = pm_config_get(config, field);
    double real = absent;
    if (value && (json_is_string(value) || !pm_json_number(value, &real) || real != floor(real) || isinf(real)))
        return fail_type(config, field, "a whole number", err);
    min = min < INT_MIN ? INT_MIN : min;
    max = max > INT_MAX ? INT_MAX : max;
    /* Every int is exact as a double, and a number beyond 2^53 is outside whichever way it was rounded. */
    if (value && (real < (double)min || real > (double)max))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: %s is %.17g, outside %lld to %lld", config->path, field, real,
                       (long long)min, (long long)max);
    *out = (int)real;
    return PM_OK;
}

int pm_config_float_or(const pm_config *config, const char *field, double min, double max, float absent, float *out,
                       pm_error *err)
{
    const json_t *value = pm_config_get(config, field);
    double real = (double)absent;
    if (value && !pm_json_number(value, &real))
        return fail_type(config, field, "a number", err);
    bool fits = isinf(real) || fabs(real) <= (double)FLT_MAX;
    if (value && (!fits || !(real >= min && real <= max)))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: %s is %g, outside %g to %g", config->path, field, real, min, max);
    *out = (float)real;
    return PM_OK;
}

int pm_config_int(const pm_config *config, const char *field, int64_t min, int64_t max, int *out, pm_error *err)
{
    int status = require(config, field, err);
    return status ? status : pm_config_int_or(config, field, min, max, 0, out, err);
}

int pm_config_float(const pm_config *config, const char *field, double min, double max, float *out, pm_error *err)
{
    int status = require(config, field, err);
    return status ? status : pm_config_float_or(config, field, min, max, 0.0f, out, err);
}

int pm_config_bool_or(const pm_config *config, const char *field, bool absent, bool *out, pm_error *err)
{
    const json_t *value = pm_config_get(config, field);
    if (value && !json_is_boolean(value))
        return fail_type(config, field, "true or false", err);
    *out = value ? json_is_true(value) : absent;
    return PM_OK;
}

int pm_config_string(const pm_config *config, const char *field, const char **out, pm_error *err)
{
    const json_t *value = pm_config_get(config, field);
    int status = require(config, field, err);
    if (status == PM_OK && !json_is_string(value))
        status = fail_type(config, field, "a string", err);
    if (status == PM_OK)
        *out = json_string_value(value);
    return status;
}

/* ---- stop tokens ---- */

typedef struct id_list {
    pm_token *ids;
    size_t n, cap;
} id_list;

/* Adds what one file's eos_token_id says; absent and null say nothing. */
static int add_eos(id_list *list, const char *file, const char *field, const json_t *value, pm_error *err)
{
    size_t n = json_is_array(value) ? json_array_size(value) : value && !json_is_null(value);
    for (size_t i = 0; i < n; i++) {
        double id;
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_number(item) || !pm_json_number(item, &id) || id != floor(id))
            return pm_fail(err, PM_ERR_FORMAT, "%s: %s is neither a token id nor a list of them", file, field);
        if (id < 0 || id > INT32_MAX)
            return pm_fail(err, PM_ERR_FORMAT, "%s: %s has %.17g, which is no token id", file, field, id);
        void *grown = list->ids;
        int status = pm_grow(&grown, &list->cap, list->n + 1, sizeof(*list->ids));
        list->ids = grown;
        if (status != PM_OK)
            return pm_fail_memory(err);
        list->ids[list->n++] = (pm_token)id;
    }
    return PM_OK;
}

static int by_id(const void *a, const void *b)
{
    pm_token x = *(const pm_token *)a, y = *(const pm_token *)b;
    return (x > y) - (x < y);
}

int pm_config_stops(const pm_config *config, const json_t *generation_config, pm_token **ids, size_t *n, pm_error *err)
{
    static const char field[] = "eos_token_id";
    id_list list = {0};
    int status = add_eos(&list, config->path, field, json_object_get(config->root, field), err);
    if (status == PM_OK && config->text != config->root)
        status = add_eos(&list, config->path, "text_config.eos_token_id", json_object_get(config->text, field), err);
    if (status == PM_OK)
        status = add_eos(&list, "generation_config.json", field, json_object_get(generation_config, field), err);
    if (status != PM_OK) {
        free(list.ids);
        return status;
    }
    if (list.n)
        qsort(list.ids, list.n, sizeof(*list.ids), by_id);
    size_t kept = 0;
    for (size_t i = 0; i < list.n; i++)
        if (!kept || list.ids[kept - 1] != list.ids[i])
            list.ids[kept++] = list.ids[i];
    *ids = list.ids;
    *n = kept;
    return PM_OK;
}
