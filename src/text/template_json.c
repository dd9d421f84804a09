/* JSON in (the variables of a rendering) and out (the tojson filter, which is Python's json.dumps). */
#include "text/template_impl.h"

#include <math.h>
#include <string.h>

bool pm_tpl_from_json(tpl_run *run, const json_t *json, int depth, tpl_value *out)
{
    if (depth > TPL_MAX_DATA_DEPTH)
        return pm_tpl_fail(run, PM_ERR_INVALID, "variables are nested more than %d deep", TPL_MAX_DATA_DEPTH);
    switch (json_typeof(json)) {
    case JSON_NULL: *out = (tpl_value){.kind = TPL_NONE}; return true;
    case JSON_TRUE: *out = (tpl_value){.kind = TPL_BOOL, .b = true}; return true;
    case JSON_FALSE: *out = (tpl_value){.kind = TPL_BOOL}; return true;
    case JSON_INTEGER: *out = pm_tpl_int(json_integer_value(json), 0); return true;
    case JSON_REAL: *out = pm_tpl_float(json_real_value(json), 0); return true;
    case JSON_STRING: return pm_tpl_text(run, json_string_value(json), json_string_length(json), 0, out);
    case JSON_ARRAY: {
        size_t n = json_array_size(json);
        if (!pm_tpl_seq_new(run, TPL_LIST, n, 0, out))
            return false;
        for (size_t i = 0; i < n; i++) {
            tpl_value item;
            if (!pm_tpl_from_json(run, json_array_get(json, i), depth + 1, &item) ||
                !pm_tpl_append(run, out->seq, item))
                return false;
        }
        return true;
    }
    case JSON_OBJECT: break;
    }
    if (!pm_tpl_dict_new(run, TPL_DICT, json_object_size(json), 0, out))
        return false;
    /* jansson iterates through a non-const pointer but does not change the object. */
    json_t *object = (json_t *)json;
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *name = json_object_iter_key(at);
        tpl_value key, value;
        if (!pm_tpl_text(run, name, strlen(name), 0, &key) ||
            !pm_tpl_from_json(run, json_object_iter_value(at), depth + 1, &value) ||
            !pm_tpl_dict_set(run, out->dict, key, value))
            return false;
    }
    return true;
}

/* ---- tojson ---- */

typedef struct writer {
    tpl_run *run;
    bool ascii, sort, pretty;
    tpl_str indent, comma, colon; /* `indent`: of one level, when pretty */
} writer;

/* Writes separators with the trust of the container that they belong to. */
static void put(writer *w, const tpl_str *s, uint8_t trust)
{
    pm_tpl_put(w->run, s->data, s->len, trust && pm_tpl_str_trust(s));
}

static void new_line(writer *w, int depth, uint8_t trust)
{
    if (!w->pretty)
        return;
    pm_tpl_puts(w->run, "\n", trust);
    for (int i = 0; i < depth; i++)
        put(w, &w->indent, trust);
}

static void put_hex(writer *w, unsigned code, uint8_t trust)
{
    static const char digits[] = "0123456789abcdef";
    char text[] = {
        '\\', 'u', digits[code >> 12 & 15], digits[code >> 8 & 15], digits[code >> 4 & 15], digits[code & 15]};
    pm_tpl_put(w->run, text, sizeof(text), trust);
}

static void write_string(writer *w, const tpl_str *s)
{
    static const char special[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    uint8_t quotes = pm_tpl_str_trust(s);
    pm_tpl_puts(w->run, "\"", quotes);
    size_t plain = 0;
    if (!pm_tpl_step(w->run, s->len / 16))
        return;
    for (size_t at = 0; at < s->len;) {
        size_t from = at;
        unsigned code = (unsigned)pm_tpl_code(s->data, s->len, &at);
        const char *found = code && code < 0x80 ? strchr(special, (int)code) : NULL;
        if (!found && code >= 0x20 && (code < 0x7F || !w->ascii))
            continue;
        uint8_t trust = pm_tpl_byte_trust(s, from);
        pm_tpl_put_piece(w->run, s, plain, from);
        plain = at;
        if (found) {
            pm_tpl_put(w->run, (char[]){'\\', letters[found - special]}, 2, trust);
        } else if (code >= 0x10000) {
            put_hex(w, 0xD800 + ((code - 0x10000) >> 10), trust);
            put_hex(w, 0xDC00 + ((code - 0x10000) & 0x3FF), trust);
        } else {
            put_hex(w, code, trust);
        }
    }
    pm_tpl_put_piece(w->run, s, plain, s->len);
    pm_tpl_puts(w->run, "\"", quotes);
}

/* The text of a scalar; false when the value is none. Keys of objects are quoted. */
static bool write_scalar(writer *w, tpl_value value, bool key)
{
    char number[40];
    const char *text = number;
    switch ((tpl_kind)value.kind) {
    case TPL_STR: write_string(w, value.s); return true;
    case TPL_NONE: text = "null"; break;
    case TPL_BOOL: text = value.b ? "true" : "false"; break;
    case TPL_INT: snprintf(number, sizeof(number), "%lld", (long long)value.i); break;
    case TPL_FLOAT:
        if (isfinite(value.f))
            pm_tpl_float_repr(value.f, number);
        else
            text = isnan(value.f) ? "NaN" : value.f > 0 ? "Infinity" : "-Infinity";
        break;
    default: return false;
    }
    if (key)
        pm_tpl_puts(w->run, "\"", value.trust);
    pm_tpl_puts(w->run, text, value.trust);
    if (key)
        pm_tpl_puts(w->run, "\"", value.trust);
    return true;
}

static bool write_value(writer *w, tpl_value value, int depth);

static bool write_object(writer *w, tpl_value value, int depth)
{
    const tpl_dict *dict = value.dict;
    size_t *order = NULL;
    if (w->sort) {
        if (!(order = pm_tpl_new(w->run, dict->n, sizeof(*order))))
            return false;
        for (size_t i = 0; i < dict->n; i++) {
            size_t at = i;
            for (int cmp; at > 0; at--) {
                if (!pm_tpl_order(w->run, dict->keys[i], dict->keys[order[at - 1]], "<", &cmp))
                    return false;
                if (cmp >= 0)
                    break;
                order[at] = order[at - 1];
            }
            order[at] = i;
        }
    }
    pm_tpl_puts(w->run, "{", value.trust);
    for (size_t k = 0; k < dict->n; k++) {
        size_t i = order ? order[k] : k;
        if (k)
            put(w, &w->comma, value.trust);
        new_line(w, depth + 1, value.trust);
        if (!write_scalar(w, dict->keys[i], dict->keys[i].kind != TPL_STR))
            return pm_tpl_fail(w->run, PM_ERR_INVALID, "tojson cannot write a key that is a %s",
                               pm_tpl_type(dict->keys[i]));
        put(w, &w->colon, value.trust);
        if (!write_value(w, dict->values[i], depth + 1))
            return false;
    }
    if (dict->n)
        new_line(w, depth, value.trust);
    pm_tpl_puts(w->run, "}", value.trust);
    return true;
}

static bool write_value(writer *w, tpl_value value, int depth)
{
    if (!pm_tpl_step(w->run, 1))
        return false;
    if (value.kind == TPL_DICT)
        return write_object(w, value, depth);
    if (value.kind != TPL_SEQ || (value.seq->flavour != TPL_LIST && value.seq->flavour != TPL_TUPLE))
        return write_scalar(w, value, false) ||
               pm_tpl_fail(w->run, PM_ERR_INVALID, "tojson cannot write a %s", pm_tpl_type(value));
    pm_tpl_puts(w->run, "[", value.trust);
    for (size_t i = 0; i < value.seq->n; i++) {
        if (i)
            put(w, &w->comma, value.trust);
        new_line(w, depth + 1, value.trust);
        if (!write_value(w, value.seq->items[i], depth + 1))
            return false;
    }
    if (value.seq->n)
        new_line(w, depth, value.trust);
    pm_tpl_puts(w->run, "]", value.trust);
    return true;
}

/* tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False), as transformers defines it. */
bool pm_tpl_tojson(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value ascii = call->arg[0], indent = call->arg[1], separators = call->arg[2], sort = call->arg[3], text;
    writer w = {.run = run, .ascii = pm_tpl_truth(ascii), .sort = pm_tpl_truth(sort)};
    w.pretty = indent.kind != TPL_MISSING && indent.kind != TPL_NONE;
    w.comma = (tpl_str){.data = ", ", .len = w.pretty ? 1 : 2, .uniform = 1};
    w.colon = (tpl_str){.data = ": ", .len = 2, .uniform = 1};
    if (w.pretty && indent.kind == TPL_STR) {
        w.indent = *indent.s;
    } else if (w.pretty) {
        if (!pm_tpl_is_int(indent) || pm_tpl_as_int(indent) > 1000)
            return pm_tpl_fail(run, PM_ERR_INVALID, "the indent of tojson must be a string or a small number");
        size_t mark = pm_tpl_mark(run);
        int64_t width = pm_tpl_as_int(indent);
        pm_tpl_fill(run, ' ', width > 0 ? (size_t)width : 0, 1);
        if (!pm_tpl_take(run, mark, false, &text))
            return false;
        w.indent = *text.s;
    }
    if (separators.kind != TPL_MISSING && separators.kind != TPL_NONE) {
        if (separators.kind != TPL_SEQ || separators.seq->n != 2 || separators.seq->items[0].kind != TPL_STR ||
            separators.seq->items[1].kind != TPL_STR)
            return pm_tpl_fail(run, PM_ERR_INVALID, "the separators of tojson must be two strings");
        w.comma = *separators.seq->items[0].s;
        w.colon = *separators.seq->items[1].s;
    }
    size_t mark = pm_tpl_mark(run);
    return write_value(&w, call->self, 0) && pm_tpl_take(run, mark, false, out);
}
