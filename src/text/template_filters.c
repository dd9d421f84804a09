/* Jinja's filters. */
#include "text/template_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- arguments ---- */

bool pm_tpl_given(tpl_value value)
{
    return value.kind != TPL_MISSING && value.kind != TPL_NONE;
}

/* The subject as text, as Jinja's soft_str: str() of whatever it is. */
static bool subject(tpl_run *run, const tpl_call *call, const tpl_str **out)
{
    tpl_value text;
    if (!pm_tpl_str(run, call->self, &text))
        return false;
    *out = text.s;
    return true;
}

bool pm_tpl_int_arg(tpl_run *run, const tpl_call *call, int i, int64_t absent, int64_t *out)
{
    *out = absent;
    if (call->arg[i].kind == TPL_MISSING)
        return true;
    if (!pm_tpl_is_int(call->arg[i]))
        return pm_tpl_fail(run, PM_ERR_INVALID, "%s: an argument must be an integer, not a %s", call->name,
                           pm_tpl_type(call->arg[i]));
    *out = pm_tpl_as_int(call->arg[i]);
    return true;
}

static bool str_arg(tpl_run *run, const tpl_call *call, int i)
{
    return call->arg[i].kind == TPL_STR ||
           pm_tpl_fail(run, PM_ERR_INVALID, "%s: an argument must be a string, not a %s", call->name,
                       pm_tpl_type(call->arg[i]));
}

/* ---- text ---- */

static bool filter_recase(tpl_run *run, const tpl_call *call, tpl_case to, tpl_value *out)
{
    const tpl_str *s;
    return subject(run, call, &s) && pm_tpl_recase(run, s, to, out);
}

static bool filter_upper(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return filter_recase(run, call, TPL_UPPER, out);
}

static bool filter_lower(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return filter_recase(run, call, TPL_LOWER, out);
}

static bool filter_capitalize(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return filter_recase(run, call, TPL_CAPITALIZE, out);
}

static bool filter_title(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return filter_recase(run, call, TPL_TITLE_FILTER, out);
}

static bool filter_trim(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s;
    if (!subject(run, call, &s))
        return false;
    if (!pm_tpl_given(call->arg[0]))
        return pm_tpl_strip(run, s, NULL, true, true, out);
    return str_arg(run, call, 0) && pm_tpl_strip(run, s, call->arg[0].s, true, true, out);
}

static bool filter_string(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return pm_tpl_str(run, call->self, out);
}

static bool filter_replace(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value text, from, to;
    int64_t count = -1;
    if (call->arg[2].kind != TPL_NONE && !pm_tpl_int_arg(run, call, 2, -1, &count))
        return false;
    if (!pm_tpl_str(run, call->self, &text) || !pm_tpl_str(run, call->arg[0], &from) ||
        !pm_tpl_str(run, call->arg[1], &to))
        return false;
    tpl_str plain = *text.s;
    plain.markup = false;
    return pm_tpl_replace(run, &plain, from.s, to.s, count, out);
}

/* `safe` marks text as escaped; `e` escapes it unless it is. */
static bool filter_safe(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s;
    tpl_str *marked = pm_tpl_new(run, 1, sizeof(*marked));
    if (!marked || !subject(run, call, &s))
        return false;
    *marked = *s;
    marked->markup = true;
    *out = (tpl_value){.kind = TPL_STR, .s = marked};
    return true;
}

static bool escape(tpl_run *run, const tpl_call *call, bool always, tpl_value *out)
{
    const tpl_str *s;
    if (!subject(run, call, &s))
        return false;
    if (s->markup && !always)
        return filter_safe(run, call, out);
    size_t mark = pm_tpl_mark(run);
    pm_tpl_put_escaped(run, s);
    return pm_tpl_take(run, mark, true, out);
}

static bool filter_escape(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return escape(run, call, false, out);
}

static bool filter_forceescape(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    return escape(run, call, true, out);
}

static bool filter_format(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s;
    tpl_value args;
    if (!subject(run, call, &s))
        return false;
    if (call->args->n && call->args->n_kw)
        return pm_tpl_fail(run, PM_ERR_INVALID, "format: values with and without a name cannot be mixed");
    if (call->args->n_kw) {
        if (!pm_tpl_dict_new(run, TPL_DICT, call->args->n_kw, 1, &args))
            return false;
        for (size_t i = 0; i < call->args->n_kw; i++) {
            tpl_value key;
            const char *name = call->args->kw[i].name;
            if (!pm_tpl_text(run, name, strlen(name), 1, &key) ||
                !pm_tpl_dict_set(run, args.dict, key, call->args->kw[i].value))
                return false;
        }
    } else {
        if (!pm_tpl_seq_new(run, TPL_TUPLE, call->args->n, 1, &args))
            return false;
        for (size_t i = 0; i < call->args->n; i++)
            if (!pm_tpl_append(run, args.seq, call->args->pos[i]))
                return false;
    }
    return pm_tpl_percent(run, s, args, out);
}

static bool filter_center(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s;
    int64_t width;
    return subject(run, call, &s) && pm_tpl_int_arg(run, call, 0, 80, &width) &&
           pm_tpl_pad(run, s, width, '^', NULL, out);
}

/* indent(width=4, first=False, blank=False): lines after the first are moved in; `width` may be the text to use. */
static bool filter_indent(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value lines, indent = call->arg[0];
    if (call->self.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, call->self);
    if (call->self.kind != TPL_STR)
        return pm_tpl_fail(run, PM_ERR_INVALID, "indent: needs a string, not a %s", pm_tpl_type(call->self));
    const tpl_str *s = call->self.s;
    size_t mark = pm_tpl_mark(run);
    if (indent.kind != TPL_STR) {
        int64_t width;
        if (!pm_tpl_int_arg(run, call, 0, 4, &width))
            return false;
        pm_tpl_fill(run, ' ', width > 0 ? (size_t)width : 0, 1);
        if (!pm_tpl_take(run, mark, false, &indent))
            return false;
    }
    /* A newline is added before the lines are split, so a newline at the end keeps an empty line after it. */
    pm_tpl_put_str(run, s);
    pm_tpl_put(run, "\n", 1, 1);
    tpl_value whole;
    if (!pm_tpl_take(run, mark, false, &whole) || !pm_tpl_splitlines(run, whole.s, false, &lines))
        return false;
    bool first = pm_tpl_truth(call->arg[1]), blank = pm_tpl_truth(call->arg[2]);
    for (size_t i = 0; i < lines.seq->n; i++) {
        const tpl_str *line = lines.seq->items[i].s;
        if (i)
            pm_tpl_put(run, "\n", 1, 1);
        if (i ? blank || line->len : first)
            pm_tpl_put_str(run, indent.s);
        pm_tpl_put_str(run, line);
    }
    return pm_tpl_take(run, mark, s->markup, out);
}

/* truncate(length=255, killwords=False, end='...', leeway=5) */
static bool filter_truncate(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int64_t length, leeway = 5, n;
    tpl_str end = {.data = "...", .len = 3, .uniform = 1};
    if (call->self.kind != TPL_STR && call->self.kind != TPL_UNDEFINED)
        return pm_tpl_fail(run, PM_ERR_INVALID, "truncate: needs a string, not a %s", pm_tpl_type(call->self));
    if (!pm_tpl_length(run, call->self, &n) || !pm_tpl_int_arg(run, call, 0, 255, &length) ||
        (pm_tpl_given(call->arg[3]) && !pm_tpl_int_arg(run, call, 3, 5, &leeway)))
        return false;
    if (call->arg[2].kind != TPL_MISSING) {
        if (!str_arg(run, call, 2))
            return false;
        end = *call->arg[2].s;
    }
    int64_t end_chars = (int64_t)pm_tpl_chars(end.data, end.len);
    if (length < end_chars || leeway < 0)
        return pm_tpl_fail(run, PM_ERR_INVALID, "truncate: the length or the leeway is too small");
    if (n <= length || n - length <= leeway) {
        *out = call->self;
        return true;
    }
    const tpl_str *s = call->self.s;
    size_t to = pm_tpl_offset(s->data, s->len, (size_t)(length - end_chars)), mark = pm_tpl_mark(run);
    if (!pm_tpl_truth(call->arg[1])) {
        size_t space = to;
        while (space && s->data[space - 1] != ' ')
            space--;
        to = space ? space - 1 : to;
    }
    pm_tpl_put_piece(run, s, 0, to);
    pm_tpl_put_str(run, &end);
    return pm_tpl_take(run, mark, s->markup, out);
}

static bool filter_wordcount(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    const tpl_str *s;
    if (!subject(run, call, &s) || !pm_tpl_step(run, s->len / 4))
        return false;
    int64_t words = 0;
    bool in_word = false;
    for (size_t at = 0; at < s->len;) {
        int32_t code = pm_tpl_code(s->data, s->len, &at);
        utf8proc_category_t category = utf8proc_category(code);
        bool word = code == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
                    (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
        words += word && !in_word;
        in_word = word;
    }
    *out = pm_tpl_int(words, pm_tpl_str_trust(s));
    return true;
}

/* ---- numbers ---- */

/* Python's int(text, base): space around, a sign, single underscores between digits; 0 as the base reads the prefix. */
static bool read_int(const tpl_str *s, int64_t base, int64_t *out)
{
    char text[128];
    size_t n = 0, from = 0, to = s->len;
    while (from < to && isspace((unsigned char)s->data[from]))
        from++;
    while (to > from && isspace((unsigned char)s->data[to - 1]))
        to--;
    if (to - from >= sizeof(text) || from == to)
        return false;
    bool negative = s->data[from] == '-';
    from += negative || s->data[from] == '+';
    if (to - from > 2 && s->data[from] == '0') {
        char letter = (char)(s->data[from + 1] | 32);
        int prefixed = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (prefixed && (base == prefixed || base == 0)) {
            base = prefixed;
            from += 2;
            from += s->data[from] == '_' && to - from > 1;
        }
    }
    if (base == 0)
        base = 10;
    for (size_t i = from; i < to; i++) {
        bool gap = s->data[i] == '_';
        if (gap && (i == from || i + 1 == to || s->data[i - 1] == '_'))
            return false;
        if (!gap && !isalnum((unsigned char)s->data[i]))
            return false;
        if (!gap)
            text[n++] = s->data[i];
    }
    int64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        int digit = isdigit((unsigned char)text[i]) ? text[i] - '0' : (text[i] | 32) - 'a' + 10;
        if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
            __builtin_sub_overflow(value, digit, &value))
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *out = negative ? value : -value;
    return n > 0;
}

/* Python's float(text). */
static bool read_float(const tpl_str *s, double *out)
{
    char text[400];
    size_t n = 0, from = 0, to = s->len;
    while (from < to && isspace((unsigned char)s->data[from]))
        from++;
    while (to > from && isspace((unsigned char)s->data[to - 1]))
        to--;
    if (from == to || to - from >= sizeof(text))
        return false;
    for (size_t i = from; i < to; i++) {
        char c = s->data[i];
        if (c == '_' && i > from && i + 1 < to && isdigit((unsigned char)s->data[i - 1]) &&
            isdigit((unsigned char)s->data[i + 1]))
            continue;
        if (!c || !strchr("0123456789+-.eEinfatyINFATY", c)) /* the letters of inf, infinity and nan; no hexadecimal */
            return false;
        text[n++] = c;
    }
    text[n] = 0;
    char *end;
    *out = strtod(text, &end);
    return !*end;
}

static bool filter_int(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value value = call->self, absent = call->arg[0];
    int64_t base, i;
    double d = 0;
    uint8_t trust = pm_tpl_trust(value);
    if (value.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, value);
    if (!pm_tpl_int_arg(run, call, 1, 10, &base))
        return false;
    if (base != 0 && (base < 2 || base > 36))
        return pm_tpl_fail(run, PM_ERR_INVALID, "int: the base must be 0 or from 2 to 36");
    if (pm_tpl_is_int(value)) {
        *out = pm_tpl_int(pm_tpl_as_int(value), trust);
        return true;
    }
    if (value.kind == TPL_STR && read_int(value.s, base, &i)) {
        *out = pm_tpl_int(i, trust);
        return true;
    }
    bool number = value.kind == TPL_FLOAT || (value.kind == TPL_STR && read_float(value.s, &d));
    if (value.kind == TPL_FLOAT)
        d = value.f;
    if (number && isfinite(d)) {
        if (!(fabs(d) < 0x1p63))
            return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "int: the number does not fit 64 bits");
        *out = pm_tpl_int((int64_t)d, trust);
        return true;
    }
    *out = absent.kind == TPL_MISSING ? pm_tpl_int(0, 1) : absent;
    return true;
}

static bool filter_float(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    double d;
    if (call->self.kind == TPL_UNDEFINED)
        return pm_tpl_fail_undefined(run, call->self);
    if (pm_tpl_is_number(call->self))
        *out = pm_tpl_float(pm_tpl_as_float(call->self), call->self.trust);
    else if (call->self.kind == TPL_STR && read_float(call->self.s, &d))
        *out = pm_tpl_float(d, pm_tpl_str_trust(call->self.s));
    else
        *out = call->arg[0].kind == TPL_MISSING ? pm_tpl_float(0, 1) : call->arg[0];
    return true;
}

static bool filter_abs(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value v = call->self;
    if (v.kind == TPL_FLOAT) {
        *out = pm_tpl_float(fabs(v.f), v.trust);
        return true;
    }
    bool negative = pm_tpl_is_int(v) && pm_tpl_as_int(v) < 0;
    return pm_tpl_negate(run, v, negative, out);
}

/* The float nearest to a number among the multiples of 10^zeros; ties go to even. */
static double round_tens(double d, int zeros)
{
    char text[64];
    if (!isfinite(d) || d == 0)
        return d;
    snprintf(text, sizeof(text), "%.17e", fabs(d));
    long keep = strtol(strchr(text, 'e') + 1, NULL, 10) + 1 - zeros; /* digits before the place that is cut */
    if (keep > 0) {
        snprintf(text, sizeof(text), "%.*e", keep < 40 ? (int)keep - 1 : 39, d);
        return strtod(text, NULL);
    }
    double unit = pow(10, zeros);
    return copysign(keep == 0 && fabs(d) > unit / 2 ? unit : 0, d);
}

/* The same of an integer; false when it does not fit. */
static bool round_int(int64_t i, int64_t zeros, int64_t *out)
{
    int64_t unit = 1;
    for (; zeros > 0; zeros--) {
        if (unit > INT64_MAX / 10) { /* more digits than it has; only the half of 10^19 is near */
            *out = 0;
            return true;
        }
        unit *= 10;
    }
    int64_t rest = i % unit, down = i - rest, half = unit / 2;
    bool away = llabs(rest) > half || (unit > 1 && llabs(rest) == half && (down / unit) % 2 != 0);
    *out = down;
    return !away || !__builtin_add_overflow(down, rest < 0 ? -unit : unit, out);
}

/* round(precision=0, method='common'): ties of the decimal value go to even, as in Python. */
static bool filter_round(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    tpl_value v = call->self;
    int64_t precision;
    const char *method = call->arg[1].kind == TPL_MISSING ? "common"
                         : call->arg[1].kind == TPL_STR   ? call->arg[1].s->data
                                                          : "";
    size_t len = call->arg[1].kind == TPL_STR ? call->arg[1].s->len : strlen(method);
    bool common = len == 6 && !memcmp(method, "common", 6), up = len == 4 && !memcmp(method, "ceil", 4);
    if (!common && !up && !(len == 5 && !memcmp(method, "floor", 5)))
        return pm_tpl_fail(run, PM_ERR_INVALID, "round: the method must be common, ceil or floor");
    if (!pm_tpl_int_arg(run, call, 0, 0, &precision))
        return false;
    if (!pm_tpl_is_number(v))
        return v.kind == TPL_UNDEFINED
                   ? pm_tpl_fail_undefined(run, v)
                   : pm_tpl_fail(run, PM_ERR_INVALID, "round: needs a number, not a %s", pm_tpl_type(v));
    if (precision < -300 || precision > 300)
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "round: the precision must be from -300 to 300");
    if (!common) {
        double scale = pow(10, (double)precision), scaled = pm_tpl_as_float(v) * scale;
        if (!isfinite(scaled))
            return pm_tpl_fail(run, PM_ERR_INVALID, "round: the number is too large");
        *out = pm_tpl_float((up ? ceil(scaled) : floor(scaled)) / scale, v.trust);
        return true;
    }
    if (pm_tpl_is_int(v)) {
        int64_t i;
        if (!round_int(pm_tpl_as_int(v), -precision, &i))
            return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "round: the result does not fit 64 bits");
        *out = pm_tpl_int(i, v.trust);
        return true;
    }
    if (precision < 0) {
        *out = pm_tpl_float(round_tens(v.f, (int)-precision), v.trust);
        return true;
    }
    char text[700];
    snprintf(text, sizeof(text), "%.*f", (int)precision, v.f);
    *out = pm_tpl_float(isfinite(v.f) ? strtod(text, NULL) : v.f, v.trust);
    return true;
}

/* ---- any value ---- */

static bool filter_default(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    bool use = call->self.kind == TPL_UNDEFINED || (pm_tpl_truth(call->arg[1]) && !pm_tpl_truth(call->self));
    if (use && call->arg[0].kind == TPL_MISSING)
        return pm_tpl_text(run, "", 0, 1, out);
    *out = use ? call->arg[0] : call->self;
    return true;
}

static bool filter_length(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    int64_t n;
    if (!pm_tpl_length(run, call->self, &n))
        return false;
    *out = pm_tpl_int(n, pm_tpl_trust(call->self));
    return true;
}

static bool filter_attr(tpl_run *run, const tpl_call *call, tpl_value *out)
{
    if (!str_arg(run, call, 0))
        return false;
    const tpl_str *s = call->arg[0].s;
    char *name = pm_tpl_new(run, s->len + 1, 1);
    if (!name)
        return false;
    memcpy(name, s->data, s->len);
    /* Attributes in the strict sense: not the items of a dict. */
    if (!pm_tpl_getattr(run, call->self, name, out))
        return false;
    if (call->self.kind == TPL_DICT && out->kind != TPL_METHOD && out->kind != TPL_UNDEFINED)
        return pm_tpl_undefined(run, NULL, "dict", name, out);
    return true;
}

static const tpl_builtin filters[] = {
    {"abs", filter_abs, 0, {NULL}},
    {"attr", filter_attr, 1, {"name"}},
    {"batch", pm_tpl_filter_batch, 1, {"linecount", "fill_with"}},
    {"capitalize", filter_capitalize, 0, {NULL}},
    {"center", filter_center, 0, {"width"}},
    {"count", filter_length, 0, {NULL}},
    {"d", filter_default, 0, {"default_value", "boolean"}},
    {"default", filter_default, 0, {"default_value", "boolean"}},
    {"dictsort", pm_tpl_filter_dictsort, 0, {"case_sensitive", "by", "reverse"}},
    {"e", filter_escape, 0, {NULL}},
    {"escape", filter_escape, 0, {NULL}},
    {"first", pm_tpl_filter_first, 0, {NULL}},
    {"float", filter_float, 0, {"default"}},
    {"forceescape", filter_forceescape, 0, {NULL}},
    {"format", filter_format, -1, {NULL}},
    {"groupby", pm_tpl_filter_groupby, 1, {"attribute", "default", "case_sensitive"}},
    {"indent", filter_indent, 0, {"width", "first", "blank"}},
    {"int", filter_int, 0, {"default", "base"}},
    {"items", pm_tpl_filter_items, 0, {NULL}},
    {"join", pm_tpl_filter_join, 0, {"d", "attribute"}},
    {"last", pm_tpl_filter_last, 0, {NULL}},
    {"length", filter_length, 0, {NULL}},
    {"list", pm_tpl_filter_list, 0, {NULL}},
    {"lower", filter_lower, 0, {NULL}},
    {"map", pm_tpl_filter_map, -1, {NULL}},
    {"max", pm_tpl_filter_max, 0, {"case_sensitive", "attribute"}},
    {"min", pm_tpl_filter_min, 0, {"case_sensitive", "attribute"}},
    {"reject", pm_tpl_filter_reject, -1, {NULL}},
    {"rejectattr", pm_tpl_filter_rejectattr, -1, {NULL}},
    {"replace", filter_replace, 2, {"old", "new", "count"}},
    {"reverse", pm_tpl_filter_reverse, 0, {NULL}},
    {"round", filter_round, 0, {"precision", "method"}},
    {"safe", filter_safe, 0, {NULL}},
    {"select", pm_tpl_filter_select, -1, {NULL}},
    {"selectattr", pm_tpl_filter_selectattr, -1, {NULL}},
    {"slice", pm_tpl_filter_slice, 1, {"slices", "fill_with"}},
    {"sort", pm_tpl_filter_sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"string", filter_string, 0, {NULL}},
    {"sum", pm_tpl_filter_sum, 0, {"attribute", "start"}},
    {"title", filter_title, 0, {NULL}},
    {"tojson", pm_tpl_tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", filter_trim, 0, {"chars"}},
    {"truncate", filter_truncate, 0, {"length", "killwords", "end", "leeway"}},
    {"unique", pm_tpl_filter_unique, 0, {"case_sensitive", "attribute"}},
    {"upper", filter_upper, 0, {NULL}},
    {"wordcount", filter_wordcount, 0, {NULL}},
    {"filesizeformat", NULL, 0, {NULL}},
    {"pprint", NULL, 0, {NULL}},
    {"random", NULL, 0, {NULL}},
    {"striptags", NULL, 0, {NULL}},
    {"urlencode", NULL, 0, {NULL}},
    {"urlize", NULL, 0, {NULL}},
    {"wordwrap", NULL, 0, {NULL}},
    {"xmlattr", NULL, 0, {NULL}}};

const tpl_builtin *pm_tpl_filter(const char *name)
{
    for (size_t i = 0; i < PM_COUNT(filters); i++)
        if (!strcmp(filters[i].name, name))
            return &filters[i];
    return NULL;
}
