/* Values: making them, and what Python says about their truth, equality, order and elements. */
#define _GNU_SOURCE /* memmem */
#include "text/template_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

tpl_value pm_tpl_none(void)
{
    return (tpl_value){.kind = TPL_NONE, .trust = 1};
}

tpl_value pm_tpl_bool(bool b)
{
    return (tpl_value){.kind = TPL_BOOL, .trust = 1, .b = b};
}

tpl_value pm_tpl_int(int64_t i, uint8_t trust)
{
    return (tpl_value){.kind = TPL_INT, .trust = trust, .i = i};
}

tpl_value pm_tpl_float(double f, uint8_t trust)
{
    return (tpl_value){.kind = TPL_FLOAT, .trust = trust, .f = f};
}

bool pm_tpl_undefined(tpl_run *run, const char *hint, const char *owner, const char *name, tpl_value *out)
{
    tpl_undefined *undefined = pm_tpl_new(run, 1, sizeof(*undefined));
    if (!undefined)
        return false;
    *undefined = (tpl_undefined){hint, owner, name};
    *out = (tpl_value){.kind = TPL_UNDEFINED, .trust = 1, .undefined = undefined};
    return true;
}

/* ---- strings ---- */

bool pm_tpl_text(tpl_run *run, const char *data, size_t len, uint8_t trust, tpl_value *out)
{
    tpl_str *s = pm_tpl_new(run, 1, sizeof(*s));
    if (!s)
        return false;
    *s = (tpl_str){.data = data, .len = len, .uniform = trust};
    *out = (tpl_value){.kind = TPL_STR, .trust = trust, .s = s};
    return true;
}

bool pm_tpl_piece(tpl_run *run, const tpl_str *s, size_t from, size_t to, tpl_value *out)
{
    tpl_str *piece = pm_tpl_new(run, 1, sizeof(*piece));
    if (!piece)
        return false;
    *piece = *s;
    piece->data += from;
    piece->len = to - from;
    if (piece->trust)
        piece->trust += from;
    *out = (tpl_value){.kind = TPL_STR, .s = piece};
    return true;
}

uint8_t pm_tpl_str_trust(const tpl_str *s)
{
    return s->trust ? !memchr(s->trust, 0, s->len) : s->uniform;
}

uint8_t pm_tpl_byte_trust(const tpl_str *s, size_t at)
{
    return s->trust ? s->trust[at] : s->uniform;
}

uint8_t pm_tpl_trust(tpl_value value)
{
    return value.kind == TPL_STR ? pm_tpl_str_trust(value.s) : value.trust;
}

bool pm_tpl_str_is(const tpl_str *s, const char *text)
{
    return s->len == strlen(text) && !memcmp(s->data, text, s->len);
}

/* ---- containers ---- */

bool pm_tpl_seq_new(tpl_run *run, tpl_flavour flavour, size_t cap, uint8_t trust, tpl_value *out)
{
    tpl_seq *seq = pm_tpl_new(run, 1, sizeof(*seq));
    if (!seq)
        return false;
    seq->flavour = flavour;
    if (cap && !(seq->items = pm_tpl_new(run, cap, sizeof(*seq->items))))
        return false;
    seq->cap = cap;
    *out = (tpl_value){.kind = TPL_SEQ, .trust = trust, .seq = seq};
    return true;
}

/* Doubles an array of the run's heap. */
static bool grow(tpl_run *run, tpl_value **items, size_t n, size_t cap)
{
    tpl_value *grown = pm_tpl_new(run, cap, sizeof(*grown));
    if (!grown)
        return false;
    if (n)
        memcpy(grown, *items, n * sizeof(*grown));
    *items = grown;
    return true;
}

/* Notes that a container at *depth holds `value`. Namespaces, which may hold themselves, are never walked. */
static bool deepen(tpl_run *run, int *depth, tpl_value value)
{
    int inner = value.kind == TPL_SEQ ? value.seq->depth + 1 : value.kind == TPL_DICT ? value.dict->depth + 1 : 0;
    if (inner > TPL_MAX_DATA_DEPTH)
        return pm_tpl_fail(run, PM_ERR_INVALID, "data is nested more than %d deep", TPL_MAX_DATA_DEPTH);
    if (inner > *depth)
        *depth = inner;
    return true;
}

bool pm_tpl_append(tpl_run *run, tpl_seq *seq, tpl_value value)
{
    if (seq->n == seq->cap) {
        size_t cap = seq->cap ? seq->cap * 2 : 4;
        if (!grow(run, &seq->items, seq->n, cap))
            return false;
        seq->cap = cap;
    }
    seq->items[seq->n++] = value;
    return deepen(run, &seq->depth, value) && pm_tpl_step(run, 1);
}

bool pm_tpl_pair(tpl_run *run, tpl_value a, tpl_value b, uint8_t trust, tpl_value *out)
{
    return pm_tpl_seq_new(run, TPL_TUPLE, 2, trust, out) && pm_tpl_append(run, out->seq, a) &&
           pm_tpl_append(run, out->seq, b);
}

bool pm_tpl_dict_new(tpl_run *run, tpl_kind kind, size_t cap, uint8_t trust, tpl_value *out)
{
    tpl_dict *dict = pm_tpl_new(run, 1, sizeof(*dict));
    if (!dict)
        return false;
    if (cap && (!(dict->keys = pm_tpl_new(run, cap, sizeof(*dict->keys))) ||
                !(dict->values = pm_tpl_new(run, cap, sizeof(*dict->values)))))
        return false;
    dict->cap = cap;
    *out = (tpl_value){.kind = (uint8_t)kind, .trust = trust, .dict = dict};
    return true;
}

bool pm_tpl_hashable(tpl_value value)
{
    if (value.kind == TPL_SEQ && value.seq->flavour == TPL_TUPLE) {
        for (size_t i = 0; i < value.seq->n; i++)
            if (!pm_tpl_hashable(value.seq->items[i]))
                return false;
        return true;
    }
    return value.kind != TPL_DICT &&
           !(value.kind == TPL_SEQ && (value.seq->flavour == TPL_LIST || value.seq->flavour == TPL_VIEW));
}

/* Equal keys have equal hashes; numbers of any type are hashed by their value. */
static uint64_t hash(tpl_value key)
{
    uint64_t h = 14695981039346656037u;
    if (key.kind == TPL_STR) {
        for (size_t i = 0; i < key.s->len; i++)
            h = (h ^ (uint8_t)key.s->data[i]) * 1099511628211u;
    } else if (pm_tpl_is_number(key)) {
        double f = pm_tpl_as_float(key) + 0.0; /* -0.0 is 0.0 */
        memcpy(&h, &f, sizeof(h));
        h *= 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    } else {
        h += key.kind;
    }
    return h;
}

static int64_t find(tpl_run *run, const tpl_dict *dict, tpl_value key)
{
    if (!pm_tpl_step(run, key.kind == TPL_STR ? 1 + key.s->len / 16 : 1))
        return -1;
    if (!dict->index) {
        for (size_t i = 0; i < dict->n; i++)
            if (pm_tpl_equal(run, dict->keys[i], key))
                return (int64_t)i;
        return -1;
    }
    for (size_t slot = hash(key) & (dict->index_cap - 1); dict->index[slot]; slot = (slot + 1) & (dict->index_cap - 1))
        if (pm_tpl_equal(run, dict->keys[dict->index[slot] - 1], key))
            return dict->index[slot] - 1;
    return -1;
}

static void index_key(tpl_dict *dict, size_t position)
{
    size_t slot = hash(dict->keys[position]) & (dict->index_cap - 1);
    while (dict->index[slot])
        slot = (slot + 1) & (dict->index_cap - 1);
    dict->index[slot] = (uint32_t)position + 1;
}

bool pm_tpl_dict_set(tpl_run *run, tpl_dict *dict, tpl_value key, tpl_value value)
{
    enum { LINEAR = 8 };
    if (!pm_tpl_hashable(key))
        return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be the key of a dict", pm_tpl_type(key));
    int64_t at = find(run, dict, key);
    if (!deepen(run, &dict->depth, key) || !deepen(run, &dict->depth, value))
        return false;
    if (at >= 0) {
        dict->values[at] = value;
        return pm_tpl_step(run, 1);
    }
    if (dict->n == dict->cap) {
        size_t cap = dict->cap ? dict->cap * 2 : 4;
        if (!grow(run, &dict->keys, dict->n, cap) || !grow(run, &dict->values, dict->n, cap))
            return false;
        dict->cap = cap;
    }
    dict->keys[dict->n] = key;
    dict->values[dict->n++] = value;
    if (dict->n > LINEAR && dict->n * 2 > dict->index_cap) {
        size_t cap = dict->index_cap ? dict->index_cap * 4 : 64;
        if (!(dict->index = pm_tpl_new(run, cap, sizeof(*dict->index))))
            return false;
        dict->index_cap = cap;
        for (size_t i = 0; i < dict->n; i++)
            index_key(dict, i);
    } else if (dict->index) {
        index_key(dict, dict->n - 1);
    }
    return pm_tpl_step(run, 1);
}

const tpl_value *pm_tpl_dict_get(tpl_run *run, const tpl_dict *dict, tpl_value key)
{
    int64_t at = find(run, dict, key);
    return at < 0 ? NULL : &dict->values[at];
}

const tpl_value *pm_tpl_dict_find(tpl_run *run, const tpl_dict *dict, const char *key)
{
    tpl_str s = {.data = key, .len = strlen(key)};
    return pm_tpl_dict_get(run, dict, (tpl_value){.kind = TPL_STR, .s = &s});
}

/* ---- numbers ---- */

bool pm_tpl_is_int(tpl_value value)
{
    return value.kind == TPL_BOOL || value.kind == TPL_INT;
}

bool pm_tpl_is_number(tpl_value value)
{
    return pm_tpl_is_int(value) || value.kind == TPL_FLOAT;
}

int64_t pm_tpl_as_int(tpl_value value)
{
    return value.kind == TPL_BOOL ? value.b : value.i;
}

double pm_tpl_as_float(tpl_value value)
{
    return value.kind == TPL_FLOAT ? value.f : (double)pm_tpl_as_int(value);
}

/* -1, 0, 1; 2 when a side is not a number. An integer and a float are compared exactly. */
static int compare_numbers(tpl_value a, tpl_value b)
{
    if (pm_tpl_is_int(a) && pm_tpl_is_int(b)) {
        int64_t x = pm_tpl_as_int(a), y = pm_tpl_as_int(b);
        return x < y ? -1 : x > y;
    }
    double x = pm_tpl_as_float(a), y = pm_tpl_as_float(b);
    if (isnan(x) || isnan(y))
        return 2;
    if (x != y || a.kind == b.kind)
        return x < y ? -1 : x > y;
    /* Equal after rounding the integer: the float is one too, unless it is 2^63. */
    int64_t i = pm_tpl_is_int(a) ? pm_tpl_as_int(a) : pm_tpl_as_int(b);
    int order = x >= 0x1p63 ? -1 : i < (int64_t)x ? -1 : i > (int64_t)x;
    return pm_tpl_is_int(a) ? order : -order;
}

/* ---- truth, equality, order ---- */

bool pm_tpl_truth(tpl_value value)
{
    switch ((tpl_kind)value.kind) {
    case TPL_MISSING:
    case TPL_UNDEFINED:
    case TPL_NONE: return false;
    case TPL_BOOL: return value.b;
    case TPL_INT: return value.i != 0;
    case TPL_FLOAT: return value.f != 0;
    case TPL_STR: return value.s->len != 0;
    case TPL_SEQ: return value.seq->flavour == TPL_GENERATOR || value.seq->n != 0;
    case TPL_DICT: return value.dict->n != 0;
    case TPL_LOOP: return value.loop->n != 0;
    default: return true;
    }
}

static bool equal_dicts(tpl_run *run, const tpl_dict *a, const tpl_dict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const tpl_value *other = pm_tpl_dict_get(run, b, a->keys[i]);
        if (!other || !pm_tpl_equal(run, a->values[i], *other))
            return false;
    }
    return true;
}

/* Views of keys and of items are sets; views of values are equal to themselves only. */
static bool equal_views(tpl_run *run, const tpl_seq *a, const tpl_seq *b)
{
    if (strcmp(a->view, b->view) != 0 || !strcmp(a->view, "dict_values"))
        return false;
    for (size_t i = 0; i < a->n; i++) {
        bool found = false;
        for (size_t k = 0; k < b->n && !found; k++)
            found = pm_tpl_equal(run, a->items[i], b->items[k]);
        if (!found)
            return false;
    }
    return true;
}

static bool equal_seqs(tpl_run *run, const tpl_seq *a, const tpl_seq *b)
{
    if (a == b)
        return true;
    if (a->flavour != b->flavour || a->n != b->n || a->flavour == TPL_GENERATOR)
        return false;
    if (a->flavour == TPL_VIEW)
        return equal_views(run, a, b);
    for (size_t i = 0; i < a->n; i++)
        if (!pm_tpl_equal(run, a->items[i], b->items[i]))
            return false;
    return true;
}

bool pm_tpl_equal(tpl_run *run, tpl_value a, tpl_value b)
{
    if (!pm_tpl_step(run, 1))
        return false;
    if (pm_tpl_is_number(a) && pm_tpl_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.kind != b.kind)
        return false;
    switch ((tpl_kind)a.kind) {
    case TPL_UNDEFINED:
    case TPL_NONE: return true;
    case TPL_STR:
        return a.s->len == b.s->len && pm_tpl_step(run, a.s->len / 64) &&
               (!a.s->len || !memcmp(a.s->data, b.s->data, a.s->len));
    case TPL_SEQ: return equal_seqs(run, a.seq, b.seq);
    case TPL_DICT: return equal_dicts(run, a.dict, b.dict);
    case TPL_METHOD: return a.method->builtin == b.method->builtin && a.method->self.dict == b.method->self.dict;
    default: return a.dict == b.dict; /* the same object */
    }
}

bool pm_tpl_order(tpl_run *run, tpl_value a, tpl_value b, const char *op, int *out)
{
    if (!pm_tpl_step(run, 1))
        return false;
    if (pm_tpl_is_number(a) && pm_tpl_is_number(b)) {
        *out = compare_numbers(a, b);
        return true;
    }
    if (a.kind == TPL_STR && b.kind == TPL_STR) {
        /* UTF-8 sorts as code points do. */
        size_t n = a.s->len < b.s->len ? a.s->len : b.s->len;
        if (!pm_tpl_step(run, n / 64))
            return false;
        int order = n ? memcmp(a.s->data, b.s->data, n) : 0;
        *out = order ? (order < 0 ? -1 : 1) : a.s->len < b.s->len ? -1 : a.s->len > b.s->len;
        return true;
    }
    if (a.kind == TPL_SEQ && b.kind == TPL_SEQ && a.seq->flavour == b.seq->flavour &&
        (a.seq->flavour == TPL_LIST || a.seq->flavour == TPL_TUPLE)) {
        for (size_t i = 0; i < a.seq->n && i < b.seq->n; i++)
            if (!pm_tpl_equal(run, a.seq->items[i], b.seq->items[i]))
                return pm_tpl_order(run, a.seq->items[i], b.seq->items[i], op, out);
        *out = a.seq->n < b.seq->n ? -1 : a.seq->n > b.seq->n;
        return true;
    }
    if (a.kind == TPL_UNDEFINED || b.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, a.kind == TPL_UNDEFINED ? a : b);
    return pm_tpl_fail(run, PM_ERR_INVALID, "'%s' is not defined between %s and %s", op, pm_tpl_type(a),
                       pm_tpl_type(b));
}

/* ---- elements ---- */

bool pm_tpl_iterable(tpl_value value)
{
    return value.kind == TPL_UNDEFINED || value.kind == TPL_STR || value.kind == TPL_SEQ || value.kind == TPL_DICT ||
           value.kind == TPL_LOOP;
}

/* The characters of a string. Iterating Markup gives plain text. */
static bool characters(tpl_run *run, const tpl_str *text, tpl_value **items, size_t *n)
{
    tpl_str plain = *text, *s = &plain;
    plain.markup = false;
    size_t count = pm_tpl_chars(s->data, s->len), at = 0;
    if (!pm_tpl_step(run, count))
        return false;
    tpl_value *chars = pm_tpl_new(run, count, sizeof(*chars));
    if (!chars)
        return false;
    for (size_t i = 0; i < count; i++) {
        size_t from = at;
        pm_tpl_code(s->data, s->len, &at);
        if (!pm_tpl_piece(run, s, from, at, &chars[i]))
            return false;
    }
    *items = chars;
    *n = count;
    return true;
}

bool pm_tpl_items(tpl_run *run, tpl_value value, tpl_value **items, size_t *n)
{
    switch ((tpl_kind)value.kind) {
    case TPL_UNDEFINED: *n = 0; return true;
    case TPL_STR: return characters(run, value.s, items, n);
    case TPL_SEQ:
        *items = value.seq->n ? value.seq->items + value.seq->start : NULL;
        *n = value.seq->n - value.seq->start;
        if (value.seq->flavour == TPL_GENERATOR)
            value.seq->start = value.seq->n;
        return pm_tpl_step(run, *n);
    case TPL_DICT:
        *items = value.dict->keys;
        *n = value.dict->n;
        return pm_tpl_step(run, *n);
    default: return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be iterated", pm_tpl_type(value));
    }
}

bool pm_tpl_length(tpl_run *run, tpl_value value, int64_t *out)
{
    switch ((tpl_kind)value.kind) {
    case TPL_UNDEFINED: *out = 0; return true;
    case TPL_STR: *out = (int64_t)pm_tpl_chars(value.s->data, value.s->len); return pm_tpl_step(run, value.s->len / 64);
    case TPL_SEQ:
        if (value.seq->flavour == TPL_GENERATOR)
            break;
        *out = (int64_t)value.seq->n;
        return true;
    case TPL_DICT: *out = (int64_t)value.dict->n; return true;
    case TPL_LOOP: *out = (int64_t)value.loop->n; return true;
    default: break;
    }
    return pm_tpl_fail(run, PM_ERR_INVALID, "a %s has no length", pm_tpl_type(value));
}

bool pm_tpl_contains(tpl_run *run, tpl_value container, tpl_value item, bool *out)
{
    *out = false;
    if (container.kind == TPL_STR) {
        if (item.kind == TPL_UNDEFINED)
            return pm_tpl_fail_undefined(run, item);
        if (item.kind != TPL_STR)
            return pm_tpl_fail(run, PM_ERR_INVALID, "'in' a string needs a string on its left, not a %s",
                               pm_tpl_type(item));
        if (!pm_tpl_step(run, container.s->len / 16))
            return false;
        *out = memmem(container.s->data, container.s->len, item.s->data, item.s->len) != NULL;
        return true;
    }
    if (container.kind == TPL_DICT) {
        if (!pm_tpl_hashable(item))
            return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be the key of a dict", pm_tpl_type(item));
        *out = pm_tpl_dict_get(run, container.dict, item) != NULL;
        return run->status == PM_OK;
    }
    if (container.kind == TPL_LOOP || !pm_tpl_iterable(container))
        return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be searched with 'in'", pm_tpl_type(container));
    if (container.kind != TPL_SEQ)
        return true;
    tpl_seq *seq = container.seq;
    if (seq->view && !strcmp(seq->view, "dict_keys") && !pm_tpl_hashable(item))
        return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be the key of a dict", pm_tpl_type(item));
    for (size_t i = seq->start; i < seq->n && !*out; i++) {
        *out = pm_tpl_equal(run, seq->items[i], item);
        if (seq->flavour == TPL_GENERATOR)
            seq->start = i + 1;
        if (!pm_tpl_step(run, 1))
            return false;
    }
    return true;
}

const char *pm_tpl_type(tpl_value value)
{
    static const char *const names[] = {
        "missing argument", "Undefined",   "None",  "bool",     "int",   "float", "str", "list", "dict",
        "Namespace",        "LoopContext", "Macro", "function", "method"};
    static const char *const flavours[] = {"list", "tuple", "dict view", "generator", "range"};
    return value.kind == TPL_SEQ ? flavours[value.seq->flavour] : names[value.kind];
}
