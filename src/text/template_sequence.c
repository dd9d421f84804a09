/* Jinja's filters of sequences and mappings: choosing, mapping, ordering, cutting. */
#include "text/template_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- attributes of elements: map(attribute=...), selectattr, sort, ... ---- */

/* item.a.0.b: parts are looked up as items first; digits are an index. `fallback` stands for what is undefined. */
static bool dotted(tpl_run *run, tpl_value item, tpl_value path, tpl_value fallback, tpl_value *out)
{
    *out = item;
    if (!pm_tpl_given(path))
        return true;
    if (path.kind != TPL_STR) {
        if (!pm_tpl_getitem(run, item, path, out))
            return false;
        if (out->kind == TPL_UNDEFINED && pm_tpl_given(fallback))
            *out = fallback;
        return true;
    }
    const tpl_str *s = path.s;
    for (size_t at = 0; at <= s->len;) {
        const char *dot = at < s->len ? memchr(s->data + at, '.', s->len - at) : NULL;
        size_t end = dot ? (size_t)(dot - s->data) : s->len, digits = at;
        tpl_value key;
        while (digits < end && isdigit((unsigned char)s->data[digits]))
            digits++;
        if (digits == end && end > at && end - at < 10)
            key = pm_tpl_int(strtol(s->data + at, NULL, 10), 1);
        else if (!pm_tpl_piece(run, s, at, end, &key))
            return false;
        if (!pm_tpl_getitem(run, *out, key, out))
            return false;
        if (out->kind == TPL_UNDEFINED && pm_tpl_given(fallback))
            *out = fallback;
        at = end + 1;
    }
    return true;
}

/* The key that an element is compared by: an attribute, and strings without regard to case unless `cased`. */
static bool key_of(tpl_run *run, tpl_value item, tpl_value path, bool cased, tpl_value *out)
{
    return dotted(run, item, path, (tpl_value){.kind = TPL_MISSING}, out) &&
           (cased || out->kind != TPL_STR || pm_tpl_recase(run, out->s, TPL_LOWER, out));
}

/* sort(attribute="a,b") compares by several attributes. The key is a list even of one, as in Jinja: then values that
 * are equal need no order. */
static bool keys_of(tpl_run *run, tpl_value item, tpl_value path, bool cased, tpl_value *out)
{
    tpl_value single;
    if (!pm_tpl_seq_new(run, TPL_LIST, 1, 1, out))
        return false;
    if (path.kind != TPL_STR || !memchr(path.s->data, ',', path.s->len))
        return key_of(run, item, path, cased, &single) && pm_tpl_append(run, out->seq, single);
    for (size_t at = 0; at <= path.s->len;) {
        const char *comma = at < path.s->len ? memchr(path.s->data + at, ',', path.s->len - at) : NULL;
        size_t end = comma ? (size_t)(comma - path.s->data) : path.s->len;
        tpl_value part, key;
        if (!pm_tpl_piece(run, path.s, at, end, &part) || !key_of(run, item, part, cased, &key) ||
            !pm_tpl_append(run, out->seq, key))
            return false;
        at = end + 1;
    }
    return true;
}

/* ---- sequences ---- */

bool pm_tpl_filter_list(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL;
    size_t n;
    if (!pm_tpl_items(run, call->self, &items, &n) || !pm_tpl_seq_new(run, TPL_LIST, n, pm_tpl_trust(call->self), out))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!pm_tpl_append(run, out->seq, items[i]))
            return false;
    return true;
}

bool pm_tpl_filter_first(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value self = call->self, *items = NULL;
    size_t n;
    bool generator = self.kind == TPL_SEQ && self.seq->flavour == TPL_GENERATOR;
    size_t start = generator ? self.seq->start : 0;
    if (!pm_tpl_items(run, self, &items, &n))
        return false;
    if (!n)
        return pm_tpl_undefined(run, "there is no first item, the sequence is empty", NULL, NULL, out);
    if (generator)
        self.seq->start = start + 1;
    *out = items[0];
    return true;
}

bool pm_tpl_filter_last(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL;
    size_t n;
    if (call->self.kind == TPL_SEQ && call->self.seq->flavour == TPL_GENERATOR)
        return pm_tpl_fail(run, PM_ERR_INVALID, "last: a generator cannot be reversed");
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    if (!n)
        return pm_tpl_undefined(run, "there is no last item, the sequence is empty", NULL, NULL, out);
    *out = items[n - 1];
    return true;
}

bool pm_tpl_filter_reverse(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL;
    size_t n;
    if (call->self.kind == TPL_STR)
        return pm_tpl_slice(run, call->self, pm_tpl_none(), pm_tpl_none(), pm_tpl_int(-1, 1), out);
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    /* A generator is made into a list first; the rest gives an iterator. */
    bool generator = call->self.kind == TPL_SEQ && call->self.seq->flavour == TPL_GENERATOR;
    if (!pm_tpl_seq_new(run, generator ? TPL_LIST : TPL_GENERATOR, n, call->self.trust, out))
        return false;
    while (n)
        if (!pm_tpl_append(run, out->seq, items[--n]))
            return false;
    return true;
}

bool pm_tpl_filter_join(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL, separator, item;
    size_t n;
    if (call->arg[0].kind == TPL_MISSING ? !pm_tpl_text(run, "", 0, 1, &separator)
                                         : !pm_tpl_str(run, call->arg[0], &separator))
        return false;
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    size_t mark = pm_tpl_mark(run);
    for (size_t i = 0; i < n; i++) {
        if (i)
            pm_tpl_put_str(run, separator.s);
        if (!dotted(run, items[i], call->arg[1], (tpl_value){.kind = TPL_MISSING}, &item))
            return false;
        pm_tpl_put_value(run, item);
    }
    return pm_tpl_take(run, mark, false, out);
}

bool pm_tpl_filter_items(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    if (call->self.kind != TPL_DICT && call->self.kind != TPL_UNDEFINED)
        return pm_tpl_fail(run, PM_ERR_INVALID, "items: needs a mapping, not a %s", pm_tpl_type(call->self));
    size_t n = call->self.kind == TPL_DICT ? call->self.dict->n : 0;
    tpl_value pair;
    if (!pm_tpl_seq_new(run, TPL_GENERATOR, n, call->self.trust, out))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!pm_tpl_pair(run, call->self.dict->keys[i], call->self.dict->values[i], call->self.trust, &pair) ||
            !pm_tpl_append(run, out->seq, pair))
            return false;
    return true;
}

/* map('filter', args...) or map(attribute='a', default=x) */
bool pm_tpl_filter_map(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_args *args = call->args;
    tpl_value path = {.kind = TPL_MISSING}, fallback = path, *items = NULL, mapped;
    const tpl_builtin *filter = NULL;
    tpl_args rest = {0};
    size_t n;
    if (!pm_tpl_seq_new(run, TPL_GENERATOR, 0, pm_tpl_trust(call->self), out))
        return false;
    if (!pm_tpl_truth(call->self))
        return true;
    if (args->n) {
        char name[64] = "";
        if (args->pos[0].kind == TPL_STR && args->pos[0].s->len < sizeof(name))
            memcpy(name, args->pos[0].s->data, args->pos[0].s->len);
        if (!(filter = pm_tpl_filter(name)))
            return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "map: filter '%s' is not supported", name);
        rest = (tpl_args){args->pos + 1, args->n - 1, args->kw, args->n_kw};
    }
    for (size_t i = 0; !filter && i < args->n_kw; i++) {
        bool attribute = !strcmp(args->kw[i].name, "attribute");
        if (!attribute && strcmp(args->kw[i].name, "default") != 0)
            return pm_tpl_fail(run, PM_ERR_INVALID, "map: unexpected argument '%s'", args->kw[i].name);
        *(attribute ? &path : &fallback) = args->kw[i].value;
    }
    if (!filter && path.kind == TPL_MISSING)
        return pm_tpl_fail(run, PM_ERR_INVALID, "map: needs a filter or an attribute");
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!(filter ? pm_tpl_call_builtin(run, filter, items[i], &rest, &mapped)
                     : dotted(run, items[i], path, fallback, &mapped)) ||
            !pm_tpl_append(run, out->seq, mapped))
            return false;
    return true;
}

/* select and reject by a test of the element, selectattr and rejectattr by one of its attribute. */
static bool choose(tpl_run *run, const tpl_call *call, bool by_attribute, bool wanted, tpl_value *out)
{
    const tpl_args *args = call->args;
    size_t skip = by_attribute, n;
    tpl_value *items = NULL, subject_value, verdict;
    const tpl_builtin *test = NULL;
    if (!pm_tpl_seq_new(run, TPL_GENERATOR, 0, pm_tpl_trust(call->self), out))
        return false;
    if (!pm_tpl_truth(call->self))
        return true;
    if (args->n < skip)
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: needs the name of an attribute", call->name);
    if (args->n > skip) {
        char name[64] = "";
        const tpl_value *given_name = &args->pos[skip];
        if (given_name->kind == TPL_STR && given_name->s->len < sizeof(name))
            memcpy(name, given_name->s->data, given_name->s->len);
        if (!(test = pm_tpl_test(name)))
            return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "%s: test '%s' is not supported", call->name, name);
    }
    tpl_args rest = {args->pos + skip + 1, test ? args->n - skip - 1 : 0, args->kw, args->n_kw};
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        tpl_value path = by_attribute ? args->pos[0] : pm_tpl_none();
        if (!dotted(run, items[i], path, (tpl_value){.kind = TPL_MISSING}, &subject_value))
            return false;
        verdict = subject_value;
        if (test && !pm_tpl_call_builtin(run, test, subject_value, &rest, &verdict))
            return false;
        if (pm_tpl_truth(verdict) == wanted && !pm_tpl_append(run, out->seq, items[i]))
            return false;
    }
    return true;
}

bool pm_tpl_filter_select(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return choose(run, call, false, true, out);
}

bool pm_tpl_filter_reject(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return choose(run, call, false, false, out);
}

bool pm_tpl_filter_selectattr(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return choose(run, call, true, true, out);
}

bool pm_tpl_filter_rejectattr(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return choose(run, call, true, false, out);
}

bool pm_tpl_filter_sum(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL, item;
    size_t n;
    *out = call->arg[1].kind == TPL_MISSING ? pm_tpl_int(0, 1) : call->arg[1];
    if (out->kind == TPL_STR)
        return pm_tpl_fail(run, PM_ERR_INVALID, "sum: cannot sum strings");
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!dotted(run, items[i], call->arg[0], (tpl_value){.kind = TPL_MISSING}, &item) ||
            !pm_tpl_binary(run, TPL_ADD, *out, item, out))
            return false;
    return true;
}

/* ---- order ---- */

typedef struct keyed {
    tpl_value key, item;
} keyed;

/* Merge sort; equal elements keep their order, in reverse too. */
static bool merge_sort(tpl_run *run, keyed *a, keyed *spare, size_t n, bool reverse)
{
    if (n < 2)
        return true;
    size_t half = n / 2, i = 0, j = half, k = 0;
    if (!merge_sort(run, a, spare, half, reverse) || !merge_sort(run, a + half, spare, n - half, reverse))
        return false;
    while (i < half && j < n) {
        int order;
        if (!pm_tpl_order(run, a[j].key, a[i].key, "<", &order))
            return false;
        bool right_first = reverse ? order == 1 : order < 0;
        spare[k++] = right_first ? a[j++] : a[i++];
    }
    while (i < half)
        spare[k++] = a[i++];
    memcpy(a, spare, k * sizeof(*a));
    return true;
}

static bool sorted(tpl_run *run, keyed *a, size_t n, bool reverse, uint8_t trust, tpl_value *out)
{
    keyed *spare = pm_tpl_new(run, n, sizeof(*spare));
    if (!spare || !merge_sort(run, a, spare, n, reverse) || !pm_tpl_seq_new(run, TPL_LIST, n, trust, out))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!pm_tpl_append(run, out->seq, a[i].item))
            return false;
    return true;
}

/* dictsort(case_sensitive=False, by='key', reverse=False) */
bool pm_tpl_filter_dictsort(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value by = call->arg[1];
    if (call->self.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, call->self);
    if (call->self.kind != TPL_DICT)
        return pm_tpl_fail(run, PM_ERR_INVALID, "dictsort: needs a mapping, not a %s", pm_tpl_type(call->self));
    bool by_value = by.kind == TPL_STR && pm_tpl_str_is(by.s, "value");
    if (by.kind != TPL_MISSING && !by_value && !(by.kind == TPL_STR && pm_tpl_str_is(by.s, "key")))
        return pm_tpl_fail(run, PM_ERR_INVALID, "dictsort: can only sort by 'key' or 'value'");
    const tpl_dict *dict = call->self.dict;
    keyed *a = pm_tpl_new(run, dict->n, sizeof(*a));
    if (!a)
        return false;
    for (size_t i = 0; i < dict->n; i++)
        if (!pm_tpl_pair(run, dict->keys[i], dict->values[i], call->self.trust, &a[i].item) ||
            !key_of(run, by_value ? dict->values[i] : dict->keys[i], pm_tpl_none(), pm_tpl_truth(call->arg[0]),
                    &a[i].key))
            return false;
    return sorted(run, a, dict->n, pm_tpl_truth(call->arg[2]), call->self.trust, out);
}

/* The elements with their keys by `attribute`. */
static bool with_keys(tpl_run *run, tpl_value value, tpl_value attribute, bool cased, keyed **out, size_t *n)
{
    tpl_value *items = NULL;
    if (!pm_tpl_items(run, value, &items, n) || !(*out = pm_tpl_new(run, *n, sizeof(**out))))
        return false;
    for (size_t i = 0; i < *n; i++) {
        (*out)[i].item = items[i];
        if (!keys_of(run, items[i], attribute, cased, &(*out)[i].key))
            return false;
    }
    return true;
}

/* sort(reverse=False, case_sensitive=False, attribute=None) */
bool pm_tpl_filter_sort(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    keyed *a;
    size_t n;
    return with_keys(run, call->self, call->arg[2], pm_tpl_truth(call->arg[1]), &a, &n) &&
           sorted(run, a, n, pm_tpl_truth(call->arg[0]), pm_tpl_trust(call->self), out);
}

/* unique(case_sensitive=False, attribute=None) */
bool pm_tpl_filter_unique(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL, seen, key;
    size_t n;
    if (!pm_tpl_items(run, call->self, &items, &n) || !pm_tpl_dict_new(run, TPL_DICT, 0, 1, &seen) ||
        !pm_tpl_seq_new(run, TPL_GENERATOR, 0, pm_tpl_trust(call->self), out))
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t before = seen.dict->n;
        if (!key_of(run, items[i], call->arg[1], pm_tpl_truth(call->arg[0]), &key) ||
            !pm_tpl_dict_set(run, seen.dict, key, pm_tpl_none()) ||
            (seen.dict->n > before && !pm_tpl_append(run, out->seq, items[i])))
            return false;
    }
    return true;
}

/* min and max (case_sensitive=False, attribute=None): the first of equals. */
static bool extreme(tpl_run *run, const tpl_call *call, bool largest, tpl_value *out)
{
    tpl_value *items = NULL, best, key;
    size_t n;
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    if (!n)
        return pm_tpl_undefined(run, "the sequence is empty", NULL, NULL, out);
    for (size_t i = 0; i < n; i++) {
        int order = 0;
        if (!key_of(run, items[i], call->arg[1], pm_tpl_truth(call->arg[0]), &key) ||
            (i && !pm_tpl_order(run, key, best, largest ? ">" : "<", &order)))
            return false;
        if (i && (order == 2 || !(largest ? order > 0 : order < 0)))
            continue;
        best = key;
        *out = items[i];
    }
    return true;
}

bool pm_tpl_filter_min(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return extreme(run, call, false, out);
}

bool pm_tpl_filter_max(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return extreme(run, call, true, out);
}

/* groupby(attribute, default=None, case_sensitive=False): (key, elements) of elements sorted by the key. */
bool pm_tpl_filter_groupby(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL, list, group = {.kind = TPL_MISSING}, last = group, pair, shown;
    bool cased = pm_tpl_truth(call->arg[2]);
    size_t n;
    if (!pm_tpl_items(run, call->self, &items, &n))
        return false;
    keyed *a = pm_tpl_new(run, n, sizeof(*a));
    for (size_t i = 0; a && i < n; i++) {
        a[i].item = items[i];
        if (!dotted(run, items[i], call->arg[0], call->arg[1], &a[i].key) ||
            (!cased && a[i].key.kind == TPL_STR && !pm_tpl_recase(run, a[i].key.s, TPL_LOWER, &a[i].key)))
            return false;
    }
    if (!a || !sorted(run, a, n, false, 1, &list) || !pm_tpl_seq_new(run, TPL_LIST, 0, pm_tpl_trust(call->self), out))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!i || !pm_tpl_equal(run, a[i].key, last)) {
            last = a[i].key;
            if (!dotted(run, a[i].item, call->arg[0], call->arg[1], &shown) ||
                !pm_tpl_seq_new(run, TPL_LIST, 0, out->trust, &group) ||
                !pm_tpl_pair(run, shown, group, out->trust, &pair) || !pm_tpl_append(run, out->seq, pair))
                return false;
            pair.seq->group = true;
        }
        if (!pm_tpl_append(run, group.seq, a[i].item))
            return false;
    }
    return true;
}

/* ---- parts ---- */

/* batch(linecount, fill_with=None): lists of so many elements. */
bool pm_tpl_filter_batch(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL, part;
    size_t n;
    int64_t count;
    if (!pm_tpl_int_arg(run, call, 0, 0, &count) || !pm_tpl_items(run, call->self, &items, &n) ||
        !pm_tpl_seq_new(run, TPL_GENERATOR, 0, pm_tpl_trust(call->self), out))
        return false;
    if (count < 1) { /* all in one list, after an empty one when the count is 0 */
        for (int i = count < 0; n && i < 2; i++)
            if (!pm_tpl_seq_new(run, TPL_LIST, 0, out->trust, &part) || !pm_tpl_append(run, out->seq, part))
                return false;
        for (size_t i = 0; i < n; i++)
            if (!pm_tpl_append(run, part.seq, items[i]))
                return false;
        return true;
    }
    for (size_t at = 0; at < n; at += (size_t)count) {
        if (!pm_tpl_seq_new(run, TPL_LIST, 0, out->trust, &part) || !pm_tpl_append(run, out->seq, part))
            return false;
        for (size_t i = at; i < n && i - at < (size_t)count; i++)
            if (!pm_tpl_append(run, part.seq, items[i]))
                return false;
        if (n - at <= (size_t)count)
            break;
    }
    while (n && pm_tpl_given(call->arg[1]) && part.seq->n < (size_t)count)
        if (!pm_tpl_append(run, part.seq, call->arg[1]))
            return false;
    return true;
}

/* slice(slices, fill_with=None): so many lists, the longer ones first. */
bool pm_tpl_filter_slice(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items = NULL, part;
    size_t n, at = 0;
    int64_t slices;
    if (!pm_tpl_int_arg(run, call, 0, 0, &slices) || !pm_tpl_items(run, call->self, &items, &n) ||
        !pm_tpl_seq_new(run, TPL_GENERATOR, 0, pm_tpl_trust(call->self), out))
        return false;
    if (slices == 0)
        return pm_tpl_fail(run, PM_ERR_INVALID, "slice: the number of slices is 0");
    for (size_t k = 0; slices > 0 && k < (size_t)slices; k++) {
        size_t extra = n % (size_t)slices, end = at + n / (size_t)slices + (k < extra);
        if (!pm_tpl_seq_new(run, TPL_LIST, 0, out->trust, &part) || !pm_tpl_append(run, out->seq, part))
            return false;
        for (; at < end; at++)
            if (!pm_tpl_append(run, part.seq, items[at]))
                return false;
        if (pm_tpl_given(call->arg[1]) && k >= extra && !pm_tpl_append(run, part.seq, call->arg[1]))
            return false;
    }
    return true;
}
