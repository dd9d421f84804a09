/* Characters, and the methods of Python's str. Every result keeps the origin of the bytes that it is made of. */
#define _GNU_SOURCE /* memmem */
#include "text/template_impl.h"

#include <string.h>

/* ---- characters ---- */

int32_t pm_tpl_code(const char *data, size_t len, size_t *at)
{
    const uint8_t *s = (const uint8_t *)data + *at;
    size_t left = len - *at, n = s[0] < 0x80 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (n > left)
        n = left;
    int32_t code = n == 1 ? s[0] : s[0] & (0xFF >> (n + 1));
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (s[i] & 63);
    *at += n;
    return code;
}

/* Python's str.isspace. */
bool pm_tpl_is_space(int32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

size_t pm_tpl_chars(const char *data, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((uint8_t)data[i] & 0xC0) != 0x80;
    return n;
}

size_t pm_tpl_offset(const char *data, size_t len, size_t chars)
{
    size_t at = 0;
    while (at < len && chars) {
        at++;
        while (at < len && ((uint8_t)data[at] & 0xC0) == 0x80)
            at++;
        chars--;
    }
    return at;
}

/* The start of the character that ends before `at`. */
size_t pm_tpl_before(const char *data, size_t at)
{
    do
        at--;
    while (at && ((uint8_t)data[at] & 0xC0) == 0x80);
    return at;
}

/* ---- strip, split, replace ---- */

static bool in_set(int32_t code, const tpl_str *chars)
{
    if (!chars)
        return pm_tpl_is_space(code);
    for (size_t at = 0; at < chars->len;)
        if (pm_tpl_code(chars->data, chars->len, &at) == code)
            return true;
    return false;
}

bool pm_tpl_strip(tpl_run *run, const tpl_str *s, const tpl_str *chars, bool left, bool right, tpl_value *out)
{
    size_t from = 0, to = s->len, each = chars ? chars->len / 8 : 0; /* what looking through `chars` costs */
    while (left && from < to) {
        size_t next = from;
        if (!pm_tpl_step(run, each) || !in_set(pm_tpl_code(s->data, s->len, &next), chars))
            break;
        from = next;
    }
    while (right && to > from) {
        size_t last = pm_tpl_before(s->data, to), at = last;
        if (!pm_tpl_step(run, each) || !in_set(pm_tpl_code(s->data, s->len, &at), chars))
            break;
        to = last;
    }
    return pm_tpl_step(run, (s->len - (to - from)) / 16) && pm_tpl_piece(run, s, from, to, out);
}

/* The offset of `what` in s[from..], or s->len when it is not there. */
static size_t find(const tpl_str *s, size_t from, const tpl_str *what)
{
    if (!what->len)
        return from;
    const char *found = memmem(s->data + from, s->len - from, what->data, what->len);
    return found ? (size_t)(found - s->data) : s->len;
}

/* The offset of the last `what` in s[..to), or SIZE_MAX. Its work is counted: it is not linear. */
static size_t find_last(tpl_run *run, const tpl_str *s, size_t to, const tpl_str *what)
{
    if (!what->len || what->len > to)
        return what->len ? SIZE_MAX : to;
    for (size_t at = to - what->len + 1; at-- > 0;) {
        if (s->data[at] != *what->data)
            continue;
        if (!memcmp(s->data + at, what->data, what->len))
            return at;
        if (!pm_tpl_step(run, what->len / 64))
            break;
    }
    return SIZE_MAX;
}

static bool add_piece(tpl_run *run, tpl_seq *list, const tpl_str *s, size_t from, size_t to)
{
    tpl_value piece;
    return pm_tpl_piece(run, s, from, to, &piece) && pm_tpl_append(run, list, piece);
}

static void reverse(tpl_seq *list)
{
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        tpl_value t = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = t;
    }
}

static bool split_space(tpl_run *run, const tpl_str *s, int64_t max, bool right, tpl_seq *list)
{
    size_t from = 0, to = s->len;
    for (;; max--) {
        tpl_value rest;
        tpl_str part = *s;
        part.data += from;
        part.len = to - from;
        part.trust = s->trust ? s->trust + from : NULL;
        if (!pm_tpl_strip(run, &part, NULL, !right, right, &rest))
            return false;
        if (!right)
            from = to - rest.s->len;
        else
            to = from + rest.s->len;
        if (from == to)
            return true;
        if (max == 0)
            return pm_tpl_append(run, list, rest);
        size_t at = right ? to : from;
        while (right ? at > from : at < to) {
            size_t probe = right ? pm_tpl_before(s->data, at) : at, next = probe;
            if (pm_tpl_is_space(pm_tpl_code(s->data, s->len, &next)))
                break;
            at = right ? probe : next;
        }
        if (!add_piece(run, list, s, right ? at : from, right ? to : at))
            return false;
        *(right ? &to : &from) = at;
    }
}

static bool split(tpl_run *run, const tpl_call *call, bool right, tpl_value *out)
{
    const tpl_str *s = call->self.s;
    tpl_value sep = call->arg[0], maxsplit = call->arg[1];
    if (maxsplit.kind != TPL_MISSING && !pm_tpl_is_int(maxsplit))
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: maxsplit must be an integer", call->name);
    int64_t max = maxsplit.kind == TPL_MISSING ? -1 : pm_tpl_as_int(maxsplit);
    if (!pm_tpl_seq_new(run, TPL_LIST, 4, pm_tpl_str_trust(s), out) || !pm_tpl_step(run, s->len / 4))
        return false;
    tpl_seq *list = out->seq;
    if (sep.kind == TPL_MISSING || sep.kind == TPL_NONE) {
        if (!split_space(run, s, max, right, list))
            return false;
    } else if (sep.kind != TPL_STR || !sep.s->len) {
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: the separator must be a string that is not empty", call->name);
    } else if (right) {
        size_t to = s->len;
        for (size_t at; max-- != 0 && (at = find_last(run, s, to, sep.s)) != SIZE_MAX; to = at)
            if (!add_piece(run, list, s, at + sep.s->len, to))
                return false;
        if (!add_piece(run, list, s, 0, to))
            return false;
    } else {
        size_t from = 0;
        for (size_t at; max-- != 0 && (at = find(s, from, sep.s)) < s->len; from = at + sep.s->len)
            if (!add_piece(run, list, s, from, at))
                return false;
        return add_piece(run, list, s, from, s->len);
    }
    if (right)
        reverse(list);
    return true;
}

static bool str_split(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return split(run, call, false, out);
}

static bool str_rsplit(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return split(run, call, true, out);
}

bool pm_tpl_splitlines(tpl_run *run, const tpl_str *s, bool keep, tpl_value *out)
{
    if (!pm_tpl_seq_new(run, TPL_LIST, 4, pm_tpl_str_trust(s), out) || !pm_tpl_step(run, s->len / 16))
        return false;
    size_t from = 0;
    for (size_t at = 0; at < s->len;) {
        size_t end = at;
        int32_t code = pm_tpl_code(s->data, s->len, &at);
        if (!((code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
              code == 0x2029))
            continue;
        if (code == '\r' && at < s->len && s->data[at] == '\n')
            at++;
        if (!add_piece(run, out->seq, s, from, keep ? at : end))
            return false;
        from = at;
    }
    return from == s->len || add_piece(run, out->seq, s, from, s->len);
}

static bool str_splitlines(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_splitlines(run, call->self.s, pm_tpl_truth(call->arg[0]), out);
}

static bool want_str(tpl_run *run, const tpl_call *call, int i)
{
    return call->arg[i].kind == TPL_STR ||
           pm_tpl_fail(run, PM_ERR_INVALID, "%s: its argument must be a string, not a %s", call->name,
                       pm_tpl_type(call->arg[i]));
}

bool pm_tpl_replace(tpl_run *run, const tpl_str *s, const tpl_str *from, const tpl_str *to, int64_t count,
                    tpl_value *out)
{
    size_t mark = pm_tpl_mark(run), at = 0;
    while (count-- != 0) {
        size_t found = find(s, at, from);
        if (from->len && found >= s->len)
            break;
        pm_tpl_put_piece(run, s, at, found);
        pm_tpl_put_str(run, to);
        at = found + from->len;
        if (!from->len) { /* between all characters, and at both ends */
            if (found >= s->len)
                break;
            pm_tpl_code(s->data, s->len, &at);
            pm_tpl_put_piece(run, s, found, at);
        }
        if (!pm_tpl_step(run, 1))
            return false;
    }
    pm_tpl_put_piece(run, s, at, s->len);
    return pm_tpl_take(run, mark, s->markup, out);
}

static bool str_replace(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value count = call->arg[2], to = call->arg[1];
    if (!want_str(run, call, 0) || !want_str(run, call, 1))
        return false;
    if (count.kind != TPL_MISSING && !pm_tpl_is_int(count))
        return pm_tpl_fail(run, PM_ERR_INVALID, "replace: the count must be an integer");
    if (call->self.s->markup && !to.s->markup) {
        size_t mark = pm_tpl_mark(run);
        pm_tpl_put_escaped(run, to.s);
        if (!pm_tpl_take(run, mark, true, &to))
            return false;
    }
    return pm_tpl_replace(run, call->self.s, call->arg[0].s, to.s,
                          count.kind == TPL_MISSING ? -1 : pm_tpl_as_int(count), out);
}

static bool strip(tpl_run *run, const tpl_call *call, bool left, bool right, tpl_value *out)
{
    tpl_value chars = call->arg[0];
    if (chars.kind == TPL_MISSING || chars.kind == TPL_NONE)
        return pm_tpl_strip(run, call->self.s, NULL, left, right, out);
    return want_str(run, call, 0) && pm_tpl_strip(run, call->self.s, chars.s, left, right, out);
}

static bool str_strip(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return strip(run, call, true, true, out);
}

static bool str_lstrip(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return strip(run, call, true, false, out);
}

static bool str_rstrip(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return strip(run, call, false, true, out);
}

/* ---- case ---- */

static bool str_upper(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_recase(run, call->self.s, TPL_UPPER, out);
}

static bool str_lower(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_recase(run, call->self.s, TPL_LOWER, out);
}

static bool str_capitalize(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_recase(run, call->self.s, TPL_CAPITALIZE, out);
}

static bool str_title(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_recase(run, call->self.s, TPL_TITLE, out);
}

static bool str_isupper(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    *out = pm_tpl_bool(pm_tpl_is_case(call->self.s, true));
    return pm_tpl_step(run, call->self.s->len / 4);
}

static bool str_islower(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    *out = pm_tpl_bool(pm_tpl_is_case(call->self.s, false));
    return pm_tpl_step(run, call->self.s->len / 4);
}

/* ---- searching ---- */

static bool begins(const tpl_str *s, const tpl_str *with)
{
    return with->len <= s->len && (!with->len || !memcmp(s->data, with->data, with->len));
}

static bool ends(const tpl_str *s, const tpl_str *with)
{
    return with->len <= s->len && (!with->len || !memcmp(s->data + s->len - with->len, with->data, with->len));
}

/* The part of a string between the optional arguments start and end, which Python clips as those of a slice; `from` is
 * where it starts in bytes. *valid is false where start lies behind the end: there not even '' is found. */
static bool part(tpl_run *run, const tpl_call *call, tpl_str *out, size_t *from, bool *valid)
{
    const tpl_str *s = call->self.s;
    int64_t n = (int64_t)pm_tpl_chars(s->data, s->len), bound[2] = {0, n};
    for (int i = 0; i < 2; i++) {
        if (call->arg[i + 1].kind != TPL_NONE && !pm_tpl_int_arg(run, call, i + 1, bound[i], &bound[i]))
            return false;
        if (bound[i] < 0)
            bound[i] = bound[i] + n < 0 ? 0 : bound[i] + n;
    }
    if (bound[1] > n)
        bound[1] = n;
    *valid = bound[0] <= bound[1];
    *out = *s;
    *from = *valid ? pm_tpl_offset(s->data, s->len, (size_t)bound[0]) : s->len;
    out->data += *from;
    out->trust = s->trust ? s->trust + *from : NULL;
    out->len = *valid ? pm_tpl_offset(out->data, s->len - *from, (size_t)(bound[1] - bound[0])) : 0;
    return pm_tpl_step(run, s->len / 4);
}

/* startswith and endswith: one string, or a tuple of them. */
static bool either(tpl_run *run, const tpl_call *call, bool (*test)(const tpl_str *, const tpl_str *), tpl_value *out)
{
    tpl_value what = call->arg[0];
    tpl_str s;
    size_t from;
    bool valid;
    if (!part(run, call, &s, &from, &valid))
        return false;
    if (what.kind == TPL_SEQ && what.seq->flavour == TPL_TUPLE) {
        *out = pm_tpl_bool(false);
        for (size_t i = 0; i < what.seq->n && !out->b; i++) {
            if (what.seq->items[i].kind != TPL_STR)
                return pm_tpl_fail(run, PM_ERR_INVALID, "%s: the tuple must hold strings", call->name);
            if (!pm_tpl_step(run, 1 + what.seq->items[i].s->len / 64))
                return false;
            out->b = valid && test(&s, what.seq->items[i].s);
        }
        return true;
    }
    if (!want_str(run, call, 0))
        return false;
    *out = pm_tpl_bool(valid && test(&s, what.s));
    return true;
}

static bool str_startswith(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return either(run, call, begins, out);
}

static bool str_endswith(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return either(run, call, ends, out);
}

/* find, rfind, index, rindex, in characters. */
static bool search(tpl_run *run, const tpl_call *call, bool last, bool must, tpl_value *out)
{
    tpl_str s;
    size_t from;
    bool valid;
    if (!want_str(run, call, 0) || !part(run, call, &s, &from, &valid))
        return false;
    const tpl_str *what = call->arg[0].s;
    size_t at = last ? find_last(run, &s, s.len, what) : find(&s, 0, what);
    bool found = valid && (last ? at != SIZE_MAX : at < s.len || !what->len);
    if (!found && must)
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: substring not found", call->name);
    const tpl_str *whole = call->self.s;
    *out = pm_tpl_int(found ? (int64_t)pm_tpl_chars(whole->data, from + at) : -1, pm_tpl_str_trust(whole));
    return true;
}

static bool str_find(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return search(run, call, false, false, out);
}

static bool str_rfind(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return search(run, call, true, false, out);
}

static bool str_index(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return search(run, call, false, true, out);
}

static bool str_rindex(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return search(run, call, true, true, out);
}

static bool str_count(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_str s;
    size_t from;
    bool valid;
    if (!want_str(run, call, 0) || !part(run, call, &s, &from, &valid))
        return false;
    const tpl_str *what = call->arg[0].s;
    int64_t n = 0;
    for (size_t at = 0; what->len && (at = find(&s, at, what)) < s.len; at += what->len)
        n++;
    if (!what->len)
        n = valid ? (int64_t)pm_tpl_chars(s.data, s.len) + 1 : 0;
    *out = pm_tpl_int(n, pm_tpl_str_trust(call->self.s));
    return true;
}

static bool partition(tpl_run *run, const tpl_call *call, bool last, tpl_value *out)
{
    if (!want_str(run, call, 0) || !pm_tpl_step(run, call->self.s->len / 4))
        return false;
    const tpl_str *s = call->self.s, *what = call->arg[0].s;
    if (!what->len)
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: the separator is empty", call->name);
    size_t at = last ? find_last(run, s, s->len, what) : find(s, 0, what);
    bool found = last ? at != SIZE_MAX : at < s->len;
    size_t cut = found ? at : last ? 0 : s->len, end = found ? at + what->len : cut;
    return pm_tpl_seq_new(run, TPL_TUPLE, 3, pm_tpl_str_trust(s), out) && add_piece(run, out->seq, s, 0, cut) &&
           add_piece(run, out->seq, s, cut, end) && add_piece(run, out->seq, s, end, s->len);
}

static bool str_partition(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return partition(run, call, false, out);
}

static bool str_rpartition(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return partition(run, call, true, out);
}

static bool str_removeprefix(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return want_str(run, call, 0) &&
           pm_tpl_piece(run, call->self.s, begins(call->self.s, call->arg[0].s) ? call->arg[0].s->len : 0,
                        call->self.s->len, out);
}

static bool str_removesuffix(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    size_t len = call->self.s->len;
    return want_str(run, call, 0) &&
           pm_tpl_piece(run, call->self.s, 0, ends(call->self.s, call->arg[0].s) ? len - call->arg[0].s->len : len,
                        out);
}

/* ---- putting together ---- */

static bool str_join(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value *items;
    size_t n, mark = pm_tpl_mark(run);
    if (!pm_tpl_items(run, call->arg[0], &items, &n))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (i)
            pm_tpl_put_str(run, call->self.s);
        tpl_value item = items[i];
        if (item.kind != TPL_STR && !call->self.s->markup)
            return pm_tpl_fail(run, PM_ERR_INVALID, "join: element %zu is a %s, not a string", i, pm_tpl_type(item));
        if (!pm_tpl_str(run, item, &item)) /* Markup takes anything */
            return false;
        if (call->self.s->markup && !item.s->markup)
            pm_tpl_put_escaped(run, item.s);
        else
            pm_tpl_put_str(run, item.s);
    }
    return pm_tpl_take(run, mark, call->self.s->markup, out);
}

/* Puts a character `n` times. */
static void fill(tpl_run *run, const tpl_str *character, int64_t n)
{
    if (character->len == 1)
        pm_tpl_fill(run, *character->data, (size_t)n, pm_tpl_byte_trust(character, 0));
    for (; character->len > 1 && n > 0 && run->status == PM_OK; n--)
        pm_tpl_put_str(run, character);
}

bool pm_tpl_pad(tpl_run *run, const tpl_str *s, int64_t width, char align, const tpl_str *with, tpl_value *out)
{
    static const tpl_str space = {.data = " ", .len = 1, .uniform = 1};
    int64_t chars = (int64_t)pm_tpl_chars(s->data, s->len), pad = width > chars ? width - chars : 0;
    int64_t left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & width & 1);
    size_t mark = pm_tpl_mark(run);
    fill(run, with ? with : &space, left);
    pm_tpl_put_str(run, s);
    fill(run, with ? with : &space, pad - left);
    return pm_tpl_take(run, mark, s->markup, out);
}

static bool pad(tpl_run *run, const tpl_call *call, char align, tpl_value *out)
{
    if (!pm_tpl_is_int(call->arg[0]))
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: the width must be an integer", call->name);
    const tpl_str *with = NULL;
    if (call->arg[1].kind != TPL_MISSING) {
        if (!want_str(run, call, 1))
            return false;
        with = call->arg[1].s;
        if (pm_tpl_chars(with->data, with->len) != 1)
            return pm_tpl_fail(run, PM_ERR_INVALID, "%s: can only fill with one character", call->name);
    }
    return pm_tpl_pad(run, call->self.s, pm_tpl_as_int(call->arg[0]), align, with, out);
}

static bool str_center(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pad(run, call, '^', out);
}

static bool str_ljust(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pad(run, call, '<', out);
}

static bool str_rjust(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pad(run, call, '>', out);
}

static bool str_zfill(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    if (!pm_tpl_is_int(call->arg[0]))
        return pm_tpl_fail(run, PM_ERR_INVALID, "zfill: the width must be an integer");
    const tpl_str *s = call->self.s;
    int64_t chars = (int64_t)pm_tpl_chars(s->data, s->len), width = pm_tpl_as_int(call->arg[0]);
    size_t sign = s->len && (s->data[0] == '-' || s->data[0] == '+'), mark = pm_tpl_mark(run);
    pm_tpl_put_piece(run, s, 0, sign);
    pm_tpl_fill(run, '0', width > chars ? (size_t)(width - chars) : 0, 1);
    pm_tpl_put_piece(run, s, sign, s->len);
    return pm_tpl_take(run, mark, s->markup, out);
}

/* Tabs become spaces up to the next multiple of the size; lines begin anew. */
static bool str_expandtabs(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s = call->self.s;
    int64_t size, column = 0;
    size_t mark = pm_tpl_mark(run), plain = 0;
    if (!pm_tpl_int_arg(run, call, 0, 8, &size))
        return false;
    for (size_t at = 0; at < s->len; at++) {
        if (s->data[at] == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            pm_tpl_put_piece(run, s, plain, at);
            pm_tpl_fill(run, ' ', (size_t)n, pm_tpl_byte_trust(s, at));
            plain = at + 1;
            column += n;
        } else if (s->data[at] == '\n' || s->data[at] == '\r') {
            column = 0;
        } else {
            column += ((uint8_t)s->data[at] & 0xC0) != 0x80;
        }
    }
    pm_tpl_put_piece(run, s, plain, s->len);
    return pm_tpl_step(run, s->len / 4) && pm_tpl_take(run, mark, s->markup, out);
}

static bool str_format(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_format(run, call->self.s, call->args, out);
}

/* By name; those without a function exist in Python only. */
const tpl_builtin pm_tpl_str_methods[] = {{"split", str_split, 0, {"sep", "maxsplit"}},
                                          {"strip", str_strip, 0, {""}},
                                          {"lstrip", str_lstrip, 0, {""}},
                                          {"rstrip", str_rstrip, 0, {""}},
                                          {"startswith", str_startswith, 1, {"", "", ""}},
                                          {"endswith", str_endswith, 1, {"", "", ""}},
                                          {"replace", str_replace, 2, {"", "", ""}},
                                          {"upper", str_upper, 0, {NULL}},
                                          {"lower", str_lower, 0, {NULL}},
                                          {"title", str_title, 0, {NULL}},
                                          {"capitalize", str_capitalize, 0, {NULL}},
                                          {"join", str_join, 1, {""}},
                                          {"format", str_format, -1, {NULL}},
                                          {"rsplit", str_rsplit, 0, {"sep", "maxsplit"}},
                                          {"splitlines", str_splitlines, 0, {"keepends"}},
                                          {"find", str_find, 1, {"", "", ""}},
                                          {"rfind", str_rfind, 1, {"", "", ""}},
                                          {"index", str_index, 1, {"", "", ""}},
                                          {"rindex", str_rindex, 1, {"", "", ""}},
                                          {"count", str_count, 1, {"", "", ""}},
                                          {"partition", str_partition, 1, {""}},
                                          {"rpartition", str_rpartition, 1, {""}},
                                          {"removeprefix", str_removeprefix, 1, {""}},
                                          {"removesuffix", str_removesuffix, 1, {""}},
                                          {"isalpha", pm_tpl_str_isalpha, 0, {NULL}},
                                          {"isdigit", pm_tpl_str_isdigit, 0, {NULL}},
                                          {"isdecimal", pm_tpl_str_isdecimal, 0, {NULL}},
                                          {"isalnum", pm_tpl_str_isalnum, 0, {NULL}},
                                          {"isspace", pm_tpl_str_isspace, 0, {NULL}},
                                          {"isupper", str_isupper, 0, {NULL}},
                                          {"islower", str_islower, 0, {NULL}},
                                          {"center", str_center, 1, {"", ""}},
                                          {"ljust", str_ljust, 1, {"", ""}},
                                          {"rjust", str_rjust, 1, {"", ""}},
                                          {"zfill", str_zfill, 1, {""}},
                                          {"casefold", NULL, 0, {NULL}},
                                          {"encode", NULL, 0, {NULL}},
                                          {"expandtabs", str_expandtabs, 0, {"tabsize"}},
                                          {"format_map", NULL, 0, {NULL}},
                                          {"isascii", pm_tpl_str_isascii, 0, {NULL}},
                                          {"isidentifier", NULL, 0, {NULL}},
                                          {"isnumeric", NULL, 0, {NULL}},
                                          {"isprintable", pm_tpl_str_isprintable, 0, {NULL}},
                                          {"istitle", pm_tpl_str_istitle, 0, {NULL}},
                                          {"maketrans", NULL, 0, {NULL}},
                                          {"swapcase", pm_tpl_str_swapcase, 0, {NULL}},
                                          {"translate", NULL, 0, {NULL}},
                                          {NULL, NULL, 0, {NULL}}};
