/* JSON files and texts, through jansson. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/config.h"

enum { JSON_MAX = 64 << 20 };

/* What Python writes for floats that JSON cannot say. */
static const struct {
    const char *name;
    double value;
} bare[] = {{"NaN", NAN}, {"Infinity", INFINITY}, {"-Infinity", -INFINITY}};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The length of a bare NaN, Infinity or -Infinity that stands as a value at text[at], or 0. A word that goes on, and a
 * word in a key's place, are left for the parser to refuse. */
static size_t bare_at(const char *text, size_t len, size_t at)
{
    for (size_t k = 0; k < PM_COUNT(bare); k++) {
        size_t n = strlen(bare[k].name), next = at + n;
        if (n > len - at || memcmp(text + at, bare[k].name, n) != 0)
            continue;
        while (next < len && is_space(text[next]))
            next++;
        bool ends = next == len || text[next] == ',' || text[next] == ']' || text[next] == '}';
        return ends ? n : 0;
    }
    return 0;
}

/* Copies text with its bare numbers in quotes. *out stays empty when there are none, which is the usual case. */
static int quote_bare(const char *text, size_t len, pm_buf *out)
{
    size_t copied = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (c == '"')
            in_string = !in_string;
        else if (in_string)
            i += c == '\\';
        else if (c == 'N' || c == 'I' || c == '-') {
            size_t n = bare_at(text, len, i);
            if (!n)
                continue;
            if (pm_buf_add(out, text + copied, i - copied) != PM_OK || pm_buf_add(out, "\"", 1) != PM_OK ||
                pm_buf_add(out, text + i, n) != PM_OK || pm_buf_add(out, "\"", 1) != PM_OK)
                return PM_ERR_MEMORY;
            copied = i + n;
            i = copied - 1;
        }
    }
    return copied ? pm_buf_add(out, text + copied, len - copied) : PM_OK;
}

/* jansson reports an allocation of its own that failed as nothing at all or as a fault in the text. A real fault is
 * there again at the second reading, with memory to spare. */
json_t *pm_json_load(const char *text, size_t len, size_t flags, json_error_t *json_err, bool *no_memory)
{
    enum { SPARE = 1 << 16 };
    json_error_t again;
    *no_memory = false;
    json_t *root = json_loadb(text, len, flags, json_err);
    if (root)
        return root;
    void *spare = malloc(len + SPARE);
    root = spare ? json_loadb(text, len, flags, &again) : NULL;
    free(spare);
    if (root)
        return root;
    *no_memory =
        !spare || !*again.text || again.position != json_err->position || strcmp(again.text, json_err->text) != 0;
    return root;
}

/* Parses text; a fault in it is `code`, with `what` and the line in the message. jansson limits the depth, checks UTF-8
 * and refuses NUL characters. */
static int parse(const char *what, const char *text, size_t len, pm_status code, json_t **out, pm_error *err)
{
    pm_buf quoted = {0};
    json_error_t json_err;
    if (quote_bare(text, len, &quoted) != PM_OK) {
        pm_buf_free(&quoted);
        return pm_fail_memory(err);
    }
    bool no_memory;
    json_t *root = pm_json_load(quoted.data ? quoted.data : text, quoted.data ? quoted.len : len,
                                JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &json_err, &no_memory);
    pm_buf_free(&quoted);
    if (root) {
        *out = root;
        return PM_OK;
    }
    if (no_memory)
        return pm_fail_memory(err);
    if (json_error_code(&json_err) == json_error_null_character)
        return pm_fail(err, code, "%s, line %d: a text has a NUL character (\\u0000)", what, json_err.line);
    return pm_fail(err, code, "%s, line %d: %s", what, json_err.line, json_err.text);
}

int pm_json_file(const char *path, size_t max, json_t **out, pm_error *err)
{
    pm_buf text = {0};
    json_t *root = NULL;
    int status = pm_read_file(path, max ? max : JSON_MAX, &text, err);
    if (status == PM_OK)
        status = parse(path, text.data, text.len, PM_ERR_FORMAT, &root, err);
    pm_buf_free(&text);
    if (status != PM_OK)
        return status;
    if (!json_is_object(root)) {
        json_decref(root);
        return pm_fail(err, PM_ERR_FORMAT, "%s, line 1: the top level is not an object", path);
    }
    *out = root;
    return PM_OK;
}

int pm_json_text(const char *what, const char *text, size_t len, json_t **out, pm_error *err)
{
    return parse(what, text, len, PM_ERR_INVALID, out, err);
}

bool pm_json_number(const json_t *value, double *out)
{
    if (json_is_number(value)) {
        *out = json_number_value(value);
        return true;
    }
    /* transformers' own spelling: {"__float__": "Infinity"} */
    const json_t *tagged = json_object_size(value) == 1 ? json_object_get(value, "__float__") : NULL;
    const char *s = json_string_value(tagged ? tagged : value);
    for (size_t k = 0; s && k < PM_COUNT(bare); k++) {
        if (strcmp(s, bare[k].name) == 0) {
            *out = bare[k].value;
            return true;
        }
    }
    return false;
}
