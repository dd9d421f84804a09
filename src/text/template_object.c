/* Attributes, items and slices; methods of dicts and lists; the global functions. Names that Python objects have but a
 * sandboxed template may not use are undefined, as in Jinja's immutable sandbox. */
#include "text/template_impl.h"

#include <locale.h>
#include <string.h>
#include <time.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

/* ---- methods of dicts and lists ---- */

static bool dict_get(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    if (!pm_tpl_hashable(call->arg[0]))
        return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be the key of a dict", pm_tpl_type(call->arg[0]));
    const tpl_value *found = pm_tpl_dict_get(run, call->self.dict, call->arg[0]);
    *out = found ? *found : call->arg[1].kind == TPL_MISSING ? pm_tpl_none() : call->arg[1];
    return true;
}

static bool dict_items(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_dict *dict = call->self.dict;
    tpl_value pair;
    if (!pm_tpl_seq_new(run, TPL_VIEW, dict->n, call->self.trust, out))
        return false;
    out->seq->view = "dict_items";
    for (size_t i = 0; i < dict->n; i++)
        if (!pm_tpl_pair(run, dict->keys[i], dict->values[i], call->self.trust, &pair) ||
            !pm_tpl_append(run, out->seq, pair))
            return false;
    return true;
}

static bool view(tpl_run *run, const tpl_call *call, const char *type, const tpl_value *items, tpl_value *out)
{
    if (!pm_tpl_seq_new(run, TPL_VIEW, call->self.dict->n, call->self.trust, out))
        return false;
    out->seq->view = type;
    for (size_t i = 0; i < call->self.dict->n; i++)
        if (!pm_tpl_append(run, out->seq, items[i]))
            return false;
    return true;
}

static bool dict_keys(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return view(run, call, "dict_keys", call->self.dict->keys, out);
}

static bool dict_values(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return view(run, call, "dict_values", call->self.dict->values, out);
}

/* Values never change, so a copy is the thing itself. */
static bool copy(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    (void)run;
    *out = call->self;
    return true;
}

static bool seq_index(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    for (size_t i = 0; i < call->self.seq->n; i++) {
        if (pm_tpl_equal(run, call->self.seq->items[i], call->arg[0])) {
            *out = pm_tpl_int((int64_t)i, call->self.trust);
            return pm_tpl_step(run, i);
        }
    }
    return pm_tpl_fail(run, PM_ERR_INVALID, "index: the value is not in the list");
}

static bool seq_count(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int64_t n = 0;
    for (size_t i = 0; i < call->self.seq->n; i++)
        n += pm_tpl_equal(run, call->self.seq->items[i], call->arg[0]);
    *out = pm_tpl_int(n, call->self.trust);
    return pm_tpl_step(run, call->self.seq->n);
}

static const tpl_builtin dict_methods[] = {{"get", dict_get, 1, {"", ""}}, {"items", dict_items, 0, {NULL}},
                                           {"keys", dict_keys, 0, {NULL}}, {"values", dict_values, 0, {NULL}},
                                           {"copy", copy, 0, {NULL}},      {"fromkeys", NULL, 0, {NULL}},
                                           {NULL, NULL, 0, {NULL}}};
static const tpl_builtin list_methods[] = {
    {"index", seq_index, 1, {""}}, {"count", seq_count, 1, {""}}, {"copy", copy, 0, {NULL}}, {NULL, NULL, 0, {NULL}}};
static const tpl_builtin tuple_methods[] = {
    {"index", seq_index, 1, {""}}, {"count", seq_count, 1, {""}}, {NULL, NULL, 0, {NULL}}};
static const tpl_builtin view_methods[] = {
    {"isdisjoint", NULL, 0, {NULL}}, {"mapping", NULL, 0, {NULL}}, {NULL, NULL, 0, {NULL}}};
static const tpl_builtin int_methods[] = {{"as_integer_ratio", NULL, 0, {NULL}},
                                          {"bit_count", NULL, 0, {NULL}},
                                          {"bit_length", NULL, 0, {NULL}},
                                          {"conjugate", NULL, 0, {NULL}},
                                          {"denominator", NULL, 0, {NULL}},
                                          {"from_bytes", NULL, 0, {NULL}},
                                          {"imag", NULL, 0, {NULL}},
                                          {"numerator", NULL, 0, {NULL}},
                                          {"real", NULL, 0, {NULL}},
                                          {"to_bytes", NULL, 0, {NULL}},
                                          {NULL, NULL, 0, {NULL}}};
static const tpl_builtin float_methods[] = {{"as_integer_ratio", NULL, 0, {NULL}},
                                            {"conjugate", NULL, 0, {NULL}},
                                            {"fromhex", NULL, 0, {NULL}},
                                            {"hex", NULL, 0, {NULL}},
                                            {"imag", NULL, 0, {NULL}},
                                            {"is_integer", NULL, 0, {NULL}},
                                            {"real", NULL, 0, {NULL}},
                                            {NULL, NULL, 0, {NULL}}};

static const tpl_builtin *methods_of(tpl_value object)
{
    static const tpl_builtin none[] = {{NULL, NULL, 0, {NULL}}};
    switch ((tpl_kind)object.kind) {
    case TPL_STR: return pm_tpl_str_methods;
    case TPL_DICT: return dict_methods;
    case TPL_BOOL:
    case TPL_INT: return int_methods;
    case TPL_FLOAT: return float_methods;
    case TPL_SEQ:
        return object.seq->flavour == TPL_LIST        ? list_methods
               : object.seq->flavour == TPL_VIEW      ? view_methods
               : object.seq->flavour == TPL_GENERATOR ? none
                                                      : tuple_methods;
    default: return none;
    }
}

bool pm_tpl_missing_method(const char *name)
{
    const tpl_builtin *const tables[] = {pm_tpl_str_methods, dict_methods, list_methods, tuple_methods,
                                         view_methods,       int_methods,  float_methods};
    bool missing = false;
    for (size_t i = 0; i < PM_COUNT(tables); i++) {
        for (const tpl_builtin *method = tables[i]; method->name; method++) {
            if (strcmp(method->name, name) != 0)
                continue;
            if (method->call)
                return false;
            missing = true;
        }
    }
    return missing;
}

/* The methods that would change an object: undefined in the sandbox, even when a dict has such a key. */
static bool is_mutator(tpl_value object, const char *name)
{
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    const char *const *names = object.kind == TPL_DICT                                     ? of_dict
                               : object.kind == TPL_SEQ && object.seq->flavour == TPL_LIST ? of_list
                                                                                           : NULL;
    for (; names && *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

/* ---- loop.* ---- */

static bool loop_cycle(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    if (!call->args->n || call->args->n_kw)
        return pm_tpl_fail(run, PM_ERR_INVALID, "loop.cycle needs values");
    *out = call->args->pos[call->self.loop->at % call->args->n];
    return true;
}

static bool loop_changed(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value now;
    if (call->args->n_kw)
        return pm_tpl_fail(run, PM_ERR_INVALID, "loop.changed takes no named values");
    if (!pm_tpl_seq_new(run, TPL_TUPLE, call->args->n, 1, &now))
        return false;
    for (size_t i = 0; i < call->args->n; i++)
        if (!pm_tpl_append(run, now.seq, call->args->pos[i]))
            return false;
    *out = pm_tpl_bool(!pm_tpl_equal(run, call->self.loop->changed, now));
    call->self.loop->changed = now;
    return true;
}

static const tpl_builtin loop_methods[] = {{"cycle", loop_cycle, -1, {NULL}}, {"changed", loop_changed, -1, {NULL}}};

static bool bind(tpl_run *run, tpl_value self, const tpl_builtin *builtin, tpl_value *out)
{
    tpl_bound *bound = pm_tpl_new(run, 1, sizeof(*bound));
    if (!bound)
        return false;
    *bound = (tpl_bound){self, builtin};
    *out = (tpl_value){.kind = TPL_METHOD, .trust = 1, .method = bound};
    return true;
}

static bool loop_attr(tpl_run *run, tpl_value object, const char *name, tpl_value *out)
{
    const tpl_loop *loop = object.loop;
    int64_t n = (int64_t)loop->n, at = (int64_t)loop->at;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", at + 1},         {"index0", at}, {"revindex", n - at},
                   {"revindex0", n - at - 1}, {"length", n},  {"depth", loop->depth0 + 1},
                   {"depth0", loop->depth0}};
    for (size_t i = 0; i < PM_COUNT(numbers); i++) {
        if (!strcmp(name, numbers[i].name)) {
            *out = pm_tpl_int(numbers[i].value, 1);
            return true;
        }
    }
    for (size_t i = 0; i < PM_COUNT(loop_methods); i++)
        if (!strcmp(name, loop_methods[i].name))
            return bind(run, object, &loop_methods[i], out);
    if (!strcmp(name, "first") || !strcmp(name, "last")) {
        *out = pm_tpl_bool(*name == 'f' ? at == 0 : at + 1 == n);
        return true;
    }
    if (!strcmp(name, "previtem") || !strcmp(name, "nextitem")) {
        bool previous = *name == 'p';
        if (previous ? at == 0 : at + 1 == n)
            return pm_tpl_undefined(run, previous ? "there is no previous item" : "there is no next item", NULL, NULL,
                                    out);
        *out = loop->items[previous ? at - 1 : at + 1];
        return true;
    }
    return pm_tpl_undefined(run, NULL, "LoopContext", name, out);
}

/* ---- attributes and items ---- */

static bool macro_attr(tpl_run *run, const tpl_macro *macro, const char *name, tpl_value *out)
{
    static const char *const flags[] = {"catch_kwargs", "catch_varargs", "caller"};
    const bool values[] = {macro->kwargs, macro->varargs, macro->caller};
    if (!strcmp(name, "name") && !macro->name) {
        *out = pm_tpl_none();
        return true;
    }
    if (!strcmp(name, "name"))
        return pm_tpl_text(run, macro->name, strlen(macro->name), 1, out);
    for (size_t i = 0; i < PM_COUNT(flags); i++) {
        if (!strcmp(name, flags[i])) {
            *out = pm_tpl_bool(values[i]);
            return true;
        }
    }
    if (strcmp(name, "arguments") != 0)
        return pm_tpl_undefined(run, NULL, "Macro", name, out);
    if (!pm_tpl_seq_new(run, TPL_TUPLE, macro->n, 1, out))
        return false;
    for (size_t i = 0; i < macro->n; i++) {
        const char *param = run->tmpl->names[macro->params[i]];
        tpl_value text;
        if (!pm_tpl_text(run, param, strlen(param), 1, &text) || !pm_tpl_append(run, out->seq, text))
            return false;
    }
    return true;
}

/* An attribute in Python's sense. *found is false when there is none. */
static bool attribute(tpl_run *run, tpl_value object, const char *name, bool *found, tpl_value *out)
{
    *found = true;
    if (object.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, object);
    if (object.kind == TPL_LOOP)
        return loop_attr(run, object, name, out);
    if (object.kind == TPL_MACRO)
        return macro_attr(run, object.macro->macro, name, out);
    if (object.kind == TPL_NAMESPACE) {
        const tpl_value *value = pm_tpl_dict_find(run, object.dict, name);
        *found = value != NULL;
        if (value)
            *out = *value;
        return true;
    }
    if (object.kind == TPL_SEQ && object.seq->group && (!strcmp(name, "grouper") || !strcmp(name, "list"))) {
        *out = object.seq->items[*name == 'l'];
        return true;
    }
    if (is_mutator(object, name))
        return pm_tpl_undefined(run, "a template may not change its data", NULL, NULL, out);
    for (const tpl_builtin *method = methods_of(object); method->name; method++)
        if (!strcmp(method->name, name))
            return bind(run, object, method, out);
    *found = false;
    return true;
}

bool pm_tpl_getattr(tpl_run *run, tpl_value object, const char *name, tpl_value *out)
{
    bool found;
    const char *owner = pm_tpl_type(object);
    if (!attribute(run, object, name, &found, out) || found)
        return run->status == PM_OK;
    const tpl_value *value = object.kind == TPL_DICT ? pm_tpl_dict_find(run, object.dict, name) : NULL;
    if (!value)
        return pm_tpl_undefined(run, NULL, owner, name, out);
    *out = *value;
    return true;
}

/* A Python index: negative counts from the end. */
static bool in_range(int64_t *index, int64_t n)
{
    if (*index < 0)
        *index += n;
    return *index >= 0 && *index < n;
}

/* object[key] in Python's sense. *found is false where Python raises TypeError or LookupError. */
static bool item(tpl_run *run, tpl_value object, tpl_value key, bool *found, tpl_value *out)
{
    *found = false;
    if (object.kind == TPL_DICT) {
        const tpl_value *value = pm_tpl_hashable(key) ? pm_tpl_dict_get(run, object.dict, key) : NULL;
        if (value) {
            *found = true;
            *out = *value;
        }
        return true;
    }
    bool seq = object.kind == TPL_SEQ && object.seq->flavour != TPL_GENERATOR && object.seq->flavour != TPL_VIEW;
    if (!pm_tpl_is_int(key) || !(seq || object.kind == TPL_STR))
        return true;
    int64_t index = pm_tpl_as_int(key);
    if (seq) {
        if ((*found = in_range(&index, (int64_t)object.seq->n)))
            *out = object.seq->items[index];
        return true;
    }
    const tpl_str *s = object.s;
    if (!pm_tpl_step(run, s->len / 4))
        return false;
    if (!(*found = in_range(&index, (int64_t)pm_tpl_chars(s->data, s->len))))
        return true;
    size_t from = pm_tpl_offset(s->data, s->len, (size_t)index);
    return pm_tpl_piece(run, s, from, from + pm_tpl_offset(s->data + from, s->len - from, 1), out);
}

bool pm_tpl_getitem(tpl_run *run, tpl_value object, tpl_value key, tpl_value *out)
{
    bool found;
    if (object.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, object);
    const char *owner = pm_tpl_type(object);
    if (!item(run, object, key, &found, out))
        return false;
    if (found)
        return true;
    char number[32] = "?";
    if (key.kind == TPL_INT)
        snprintf(number, sizeof(number), "%lld", (long long)key.i);
    char *name = key.kind == TPL_STR ? pm_tpl_new(run, key.s->len + 1, 1) : pm_tpl_new(run, sizeof(number), 1);
    if (!name)
        return false;
    if (key.kind != TPL_STR) {
        memcpy(name, number, sizeof(number));
        return pm_tpl_undefined(run, NULL, owner, name, out);
    }
    memcpy(name, key.s->data, key.s->len);
    if (strlen(name) == key.s->len) {
        if (!attribute(run, object, name, &found, out))
            return false;
        if (found)
            return true;
    }
    return pm_tpl_undefined(run, NULL, owner, name, out);
}

/* ---- slices ---- */

/* Start or end of a slice as Python clips it. */
static bool slice_bound(tpl_run *run, tpl_value value, int64_t n, int64_t step, int64_t absent, int64_t *out)
{
    *out = absent;
    if (value.kind == TPL_MISSING || value.kind == TPL_NONE)
        return true;
    if (value.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, value);
    if (!pm_tpl_is_int(value))
        return pm_tpl_fail(run, PM_ERR_INVALID, "the bounds of a slice must be integers, not a %s", pm_tpl_type(value));
    int64_t i = pm_tpl_as_int(value), low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    if (i < 0)
        i += n;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

/* Characters from, from + step, ... of a string: one piece when the step is 1. */
static bool slice_string(tpl_run *run, const tpl_str *s, int64_t from, int64_t to, int64_t step, tpl_value *out)
{
    if (step == 1) {
        size_t start = pm_tpl_offset(s->data, s->len, (size_t)from);
        size_t len = to > from ? pm_tpl_offset(s->data + start, s->len - start, (size_t)(to - from)) : 0;
        return pm_tpl_piece(run, s, start, start + len, out);
    }
    tpl_value *items = NULL;
    size_t n, mark = pm_tpl_mark(run);
    if (!pm_tpl_items(run, (tpl_value){.kind = TPL_STR, .s = s}, &items, &n))
        return false;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step)
        pm_tpl_put_str(run, items[i].s);
    return pm_tpl_take(run, mark, s->markup, out);
}

bool pm_tpl_slice(tpl_run *run, tpl_value object, tpl_value from, tpl_value to, tpl_value step_value, tpl_value *out)
{
    int64_t step = 1, first, end, n;
    bool seq = object.kind == TPL_SEQ && object.seq->flavour != TPL_GENERATOR && object.seq->flavour != TPL_VIEW;
    if (object.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, object);
    if (!seq && object.kind != TPL_STR)
        return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be sliced", pm_tpl_type(object));
    if (!pm_tpl_length(run, object, &n))
        return false;
    if (step_value.kind != TPL_MISSING && step_value.kind != TPL_NONE) {
        if (!pm_tpl_is_int(step_value) || !(step = pm_tpl_as_int(step_value)))
            return pm_tpl_fail(run, PM_ERR_INVALID, "the step of a slice must be an integer other than 0");
        if (step > n + 1 || step < -n - 1) /* one element at most, and no overflow below */
            step = step > 0 ? n + 1 : -n - 1;
    }
    if (!slice_bound(run, from, n, step, step < 0 ? n - 1 : 0, &first) ||
        !slice_bound(run, to, n, step, step < 0 ? -1 : n, &end))
        return false;
    if (!seq)
        return slice_string(run, object.s, first, end, step, out);
    const tpl_seq *from_seq = object.seq;
    if (!pm_tpl_seq_new(run, from_seq->flavour, 0, object.trust, out))
        return false;
    if (from_seq->flavour == TPL_RANGE) { /* at most TPL_MAX_RANGE long, so the products are those of elements */
        out->seq->first = (int64_t)((uint64_t)from_seq->first + (uint64_t)first * (uint64_t)from_seq->step);
        out->seq->end = (int64_t)((uint64_t)from_seq->first + (uint64_t)end * (uint64_t)from_seq->step);
        out->seq->step = (int64_t)((uint64_t)from_seq->step * (uint64_t)step);
    }
    for (int64_t i = first; step > 0 ? i < end : i > end; i += step)
        if (!pm_tpl_append(run, out->seq, from_seq->items[i]))
            return false;
    return true;
}

/* ---- global functions ---- */

static bool global_range(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int64_t value[3] = {0, 0, 1};
    size_t n = call->args->n;
    uint8_t trust = 1;
    if (n < 1 || n > 3 || call->args->n_kw)
        return pm_tpl_fail(run, PM_ERR_INVALID, "range() takes one to three numbers");
    for (size_t i = 0; i < n; i++) {
        tpl_value arg = call->args->pos[i];
        if (arg.kind == TPL_UNDEFINED)
            return pm_tpl_fail_undefined(run, arg);
        if (!pm_tpl_is_int(arg))
            return pm_tpl_fail(run, PM_ERR_INVALID, "range() takes integers, not a %s", pm_tpl_type(arg));
        value[n == 1 ? 1 : i] = pm_tpl_as_int(arg);
        trust = trust && arg.trust;
    }
    int64_t step = value[2];
    if (!step)
        return pm_tpl_fail(run, PM_ERR_INVALID, "the step of range() is 0");
    uint64_t span = step > 0              ? value[1] > value[0] ? (uint64_t)value[1] - (uint64_t)value[0] : 0
                    : value[0] > value[1] ? (uint64_t)value[0] - (uint64_t)value[1]
                                          : 0;
    uint64_t stride = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = span ? (span - 1) / stride + 1 : 0;
    if (count > TPL_MAX_RANGE)
        return pm_tpl_fail(run, PM_ERR_INVALID, "range() of %llu numbers is over the limit of %d",
                           (unsigned long long)count, TPL_MAX_RANGE);
    if (!pm_tpl_seq_new(run, TPL_RANGE, (size_t)count, trust, out))
        return false;
    out->seq->first = value[0];
    out->seq->end = value[1];
    out->seq->step = step;
    for (uint64_t i = 0; i < count; i++)
        if (!pm_tpl_append(run, out->seq, pm_tpl_int((int64_t)((uint64_t)value[0] + i * (uint64_t)step), trust)))
            return false;
    return true;
}

/* dict(...) and namespace(...): a mapping or pairs, then named values. */
static bool make_dict(tpl_run *run, const tpl_call *call, tpl_kind kind, tpl_value *out)
{
    if (call->args->n > 1)
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s() takes at most one value without a name", call->name);
    if (!pm_tpl_dict_new(run, kind, call->args->n_kw, 1, out))
        return false;
    tpl_dict *dict = out->dict;
    if (call->args->n) {
        tpl_value from = call->args->pos[0], *items = NULL;
        size_t n;
        if (from.kind == TPL_UNDEFINED)
            return pm_tpl_fail_undefined(run, from);
        out->trust = from.trust;
        if (!pm_tpl_items(run, from, &items, &n))
            return false;
        for (size_t i = 0; i < n; i++) {
            tpl_value *pair = items + i;
            bool is_pair = items[i].kind == TPL_SEQ && items[i].seq->n == 2;
            if (from.kind != TPL_DICT && !is_pair)
                return pm_tpl_fail(run, PM_ERR_INVALID, "%s() needs a mapping or pairs", call->name);
            if (from.kind == TPL_DICT ? !pm_tpl_dict_set(run, dict, *pair, from.dict->values[i])
                                      : !pm_tpl_dict_set(run, dict, pair->seq->items[0], pair->seq->items[1]))
                return false;
        }
    }
    for (size_t i = 0; i < call->args->n_kw; i++) {
        const char *name = call->args->kw[i].name;
        tpl_value key;
        if (!pm_tpl_text(run, name, strlen(name), 1, &key) || !pm_tpl_dict_set(run, dict, key, call->args->kw[i].value))
            return false;
    }
    for (size_t i = 0; kind == TPL_NAMESPACE && i < dict->n; i++)
        if (dict->keys[i].kind == TPL_STR && dict->keys[i].s->len && dict->keys[i].s->data[0] == '_')
            return pm_tpl_fail(run, PM_ERR_INVALID, "a namespace may not hold names that begin with '_'");
    return true;
}

static bool global_dict(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return make_dict(run, call, TPL_DICT, out);
}

static bool global_namespace(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return make_dict(run, call, TPL_NAMESPACE, out);
}

static bool global_raise(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    (void)out;
    tpl_value text;
    if (!pm_tpl_str(run, call->arg[0], &text))
        return false;
    return pm_tpl_fail(run, PM_ERR_INVALID, "%.*s", (int)(text.s->len < 900 ? text.s->len : 900), text.s->data);
}

/* A format of strftime with what Python's datetime.now() settles itself: it knows no time zone and has microseconds.
 * False when it does not fit. */
static bool settle_format(const tpl_str *format, long microseconds, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < format->len; i++) {
        char next = format->data[i] == '%' && i + 1 < format->len ? format->data[i + 1] : 0;
        if (n + 8 > size)
            return false;
        if (next == 'f')
            n += (size_t)snprintf(out + n, size - n, "%06ld", microseconds);
        else if (next && next != 'z' && next != 'Z')
            out[n++] = '%', out[n++] = next;
        else if (!next)
            out[n++] = format->data[i];
        i += next != 0;
    }
    out[n] = 0;
    return true;
}

/* The local time through strftime, whatever the language of the program. */
static bool global_strftime(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value format = call->arg[0];
    if (format.kind != TPL_STR)
        return pm_tpl_fail(run, PM_ERR_INVALID, "strftime_now() needs a string");
    char text[2048], wanted[256];
    struct timespec now;
    struct tm local;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0 || !localtime_r(&now.tv_sec, &local))
        return pm_tpl_fail(run, PM_ERR_INVALID, "the local time is not known");
    if ((format.s->len && memchr(format.s->data, 0, format.s->len)) ||
        !settle_format(format.s, now.tv_nsec / 1000, wanted, sizeof(wanted)))
        return pm_tpl_fail(run, PM_ERR_INVALID, "the format of strftime_now() is too long");
    if (!*wanted)
        return pm_tpl_text(run, "", 0, 1, out);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain)
        return pm_tpl_fail_memory(run);
    size_t n = strftime_l(text, sizeof(text), wanted, &local, plain), mark = pm_tpl_mark(run);
    freelocale(plain);
    pm_tpl_put(run, text, n, pm_tpl_str_trust(format.s));
    return pm_tpl_take(run, mark, false, out);
}

static const tpl_builtin globals[] = {{"range", global_range, -1, {NULL}},
                                      {"dict", global_dict, -1, {NULL}},
                                      {"namespace", global_namespace, -1, {NULL}},
                                      {"raise_exception", global_raise, 1, {"message"}},
                                      {"strftime_now", global_strftime, 1, {"format"}},
                                      {"lipsum", NULL, 0, {NULL}},
                                      {"cycler", NULL, 0, {NULL}},
                                      {"joiner", NULL, 0, {NULL}}};

const tpl_builtin *pm_tpl_global(const char *name)
{
    for (size_t i = 0; i < PM_COUNT(globals); i++)
        if (!strcmp(globals[i].name, name))
            return &globals[i];
    return NULL;
}
