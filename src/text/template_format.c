/* The text of values as Python writes it: str(), repr(), the % operator and str.format(). */
#include "text/template_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- numbers ---- */

/* Replaces the decimal point of the locale. */
static void fix_point(char *text)
{
    for (char *c = text; *c; c++)
        if (*c == ',')
            *c = '.';
}

/* The shortest digits that read back as the same float, laid out as Python does: an exponent below 1e-4 and from 1e16.
 */
size_t pm_tpl_float_repr(double f, char out[40])
{
    if (!isfinite(f))
        return (size_t)sprintf(out, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
    char text[40], digits[24] = "";
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, f);
        if (strtod(text, NULL) == f)
            break;
    }
    int n = 0, exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (const char *c = text; *c != 'e'; c++)
        if (isdigit((unsigned char)*c))
            digits[n++] = *c;
    char *at = out;
    if (signbit(f))
        *at++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *at++ = digits[0];
        if (n > 1)
            at += sprintf(at, ".%.*s", n - 1, digits + 1);
        at += sprintf(at, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        at += sprintf(at, "0.%.*s%.*s", -exponent - 1, "000", n, digits);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1)
                *at++ = '.';
            *at++ = i < n ? digits[i] : '0';
        }
        if (n <= exponent + 1)
            at += sprintf(at, ".0");
    }
    *at = 0;
    return (size_t)(at - out);
}

/* ---- repr and str ---- */

bool pm_tpl_printable(int32_t code)
{
    if (code < 0x7F)
        return code >= 0x20;
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void put_quoted(tpl_run *run, const tpl_str *s)
{
    bool single = s->len && memchr(s->data, '\'', s->len), doubled = s->len && memchr(s->data, '"', s->len);
    char quote = single && !doubled ? '"' : '\'';
    uint8_t quotes = pm_tpl_str_trust(s);
    if (s->markup)
        pm_tpl_puts(run, "Markup(", quotes);
    pm_tpl_put(run, &quote, 1, quotes);
    for (size_t at = 0; at < s->len;) {
        size_t from = at;
        int32_t code = pm_tpl_code(s->data, s->len, &at);
        uint8_t trust = pm_tpl_byte_trust(s, from);
        char text[16];
        if (code == '\n' || code == '\r' || code == '\t')
            sprintf(text, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (code == '\\' || code == quote)
            sprintf(text, "\\%c", (char)code);
        else if (!pm_tpl_printable(code))
            sprintf(text, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)code);
        else {
            pm_tpl_put_piece(run, s, from, at);
            continue;
        }
        pm_tpl_puts(run, text, trust);
    }
    pm_tpl_put(run, &quote, 1, quotes);
    if (s->markup)
        pm_tpl_puts(run, ")", quotes);
}

static void put_seq(tpl_run *run, tpl_value value)
{
    const tpl_seq *seq = value.seq;
    char text[100];
    if (seq->flavour == TPL_RANGE) {
        int n = snprintf(text, sizeof(text), "range(%lld, %lld", (long long)seq->first, (long long)seq->end);
        if (seq->step != 1)
            snprintf(text + n, sizeof(text) - (size_t)n, ", %lld", (long long)seq->step);
        pm_tpl_puts(run, text, value.trust);
        pm_tpl_puts(run, ")", value.trust);
        return;
    }
    if (seq->flavour == TPL_GENERATOR) {
        pm_tpl_report(run, PM_ERR_INVALID, "a %s has no text", pm_tpl_type(value));
        return;
    }
    bool tuple = seq->flavour == TPL_TUPLE, is_view = seq->flavour == TPL_VIEW;
    if (is_view)
        pm_tpl_puts(run, seq->view, value.trust);
    pm_tpl_puts(run, tuple ? "(" : is_view ? "([" : "[", value.trust);
    for (size_t i = 0; i < seq->n; i++) {
        if (i)
            pm_tpl_puts(run, ", ", value.trust);
        pm_tpl_put_repr(run, seq->items[i]);
    }
    pm_tpl_puts(run, !tuple ? is_view ? "])" : "]" : seq->n == 1 ? ",)" : ")", value.trust);
}

static void put_dict(tpl_run *run, tpl_value value)
{
    pm_tpl_puts(run, "{", value.trust);
    for (size_t i = 0; i < value.dict->n; i++) {
        if (i)
            pm_tpl_puts(run, ", ", value.trust);
        pm_tpl_put_repr(run, value.dict->keys[i]);
        pm_tpl_puts(run, ": ", value.trust);
        pm_tpl_put_repr(run, value.dict->values[i]);
    }
    pm_tpl_puts(run, "}", value.trust);
}

void pm_tpl_put_repr(tpl_run *run, tpl_value value)
{
    char number[64];
    const char *text = number;
    if (!pm_tpl_step(run, 1))
        return;
    switch ((tpl_kind)value.kind) {
    case TPL_UNDEFINED: text = "Undefined"; break;
    case TPL_NONE: text = "None"; break;
    case TPL_BOOL: text = value.b ? "True" : "False"; break;
    case TPL_INT: snprintf(number, sizeof(number), "%lld", (long long)value.i); break;
    case TPL_FLOAT: pm_tpl_float_repr(value.f, number); break;
    case TPL_STR: put_quoted(run, value.s); return;
    case TPL_SEQ: put_seq(run, value); return;
    case TPL_DICT: put_dict(run, value); return;
    case TPL_LOOP: snprintf(number, sizeof(number), "<LoopContext %zu/%zu>", value.loop->at + 1, value.loop->n); break;
    case TPL_MACRO:
        pm_tpl_puts(run, value.macro->macro->name ? "<Macro '" : "<Macro anonymous>", value.trust);
        if (value.macro->macro->name) {
            pm_tpl_puts(run, value.macro->macro->name, value.trust);
            pm_tpl_puts(run, "'>", value.trust);
        }
        return;
    default: pm_tpl_report(run, PM_ERR_INVALID, "a %s has no text", pm_tpl_type(value)); return;
    }
    pm_tpl_puts(run, text, value.trust);
}

void pm_tpl_put_value(tpl_run *run, tpl_value value)
{
    if (value.kind == TPL_STR)
        pm_tpl_put_str(run, value.s);
    else if (value.kind != TPL_UNDEFINED)
        pm_tpl_put_repr(run, value);
}

bool pm_tpl_str(tpl_run *run, tpl_value value, tpl_value *out)
{
    if (value.kind == TPL_STR) {
        *out = value;
        return true;
    }
    size_t mark = pm_tpl_mark(run);
    pm_tpl_put_value(run, value);
    return pm_tpl_take(run, mark, false, out);
}

/* ---- fields of % and format() ---- */

typedef struct field {
    char fill, align, sign, type; /* 0: not given */
    bool alternate, zero;
    int64_t width, precision; /* -1: not given */
} field;

/* Reads digits of s at *at; -1 when there are none. Large numbers are cut at a million, over any limit below. */
static int64_t read_number(const tpl_str *s, size_t *at)
{
    int64_t n = -1;
    while (*at < s->len && isdigit((unsigned char)s->data[*at])) {
        n = (n < 0 ? 0 : n) * 10 + (s->data[(*at)++] - '0');
        if (n > 1000000)
            n = 1000000;
    }
    return n;
}

/* Puts text in a field: `sign_len` bytes of it are a sign, after which zeros go. */
static void put_padded(tpl_run *run, const field *f, const tpl_str *text, size_t sign_len, char align, uint8_t trust)
{
    int64_t chars = (int64_t)pm_tpl_chars(text->data, text->len);
    size_t pad = f->width > chars ? (size_t)(f->width - chars) : 0;
    size_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    char fill = f->fill ? f->fill : ' ';
    if (align == '=') {
        pm_tpl_put_piece(run, text, 0, sign_len);
        pm_tpl_fill(run, fill, pad, trust);
        pm_tpl_put_piece(run, text, sign_len, text->len);
        return;
    }
    pm_tpl_fill(run, fill, left, trust);
    pm_tpl_put_str(run, text);
    pm_tpl_fill(run, fill, pad - left, trust);
}

/* The text of a number in the types d, x, X, o, e, E, f, F, g, G; %s for one that this does not write. */
static bool number_text(tpl_run *run, tpl_value value, const field *f, char type, char *out, size_t size)
{
    const char *sign = f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    bool integer = strchr("dxXo", type) != NULL;
    if (f->precision > 300 || (integer && f->precision >= 0) || (f->alternate && !integer))
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "a format with '#' or '.%lld' before '%c' is not supported",
                           (long long)f->precision, type);
    if (integer) {
        int64_t i = value.kind == TPL_FLOAT ? (int64_t)value.f : pm_tpl_as_int(value);
        uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
        const char *base = !f->alternate || type == 'd' ? "" : type == 'o' ? "0o" : type == 'x' ? "0x" : "0X";
        const char *format = type == 'd'   ? "%s%s%llu"
                             : type == 'x' ? "%s%s%llx"
                             : type == 'X' ? "%s%s%llX"
                                           : "%s%s%llo";
        snprintf(out, size, format, i < 0 ? "-" : sign, base, (unsigned long long)magnitude);
        return true;
    }
    double d = pm_tpl_as_float(value);
    char format[] = "%s%.*f";
    format[5] = type;
    snprintf(out, size, format, signbit(d) && !isnan(d) ? "-" : sign, f->precision < 0 ? 6 : (int)f->precision,
             fabs(d));
    fix_point(out);
    return true;
}

/* Writes a value into a field of type `type` (0 and 's': its text). */
static bool put_field(tpl_run *run, tpl_value value, const field *f, char type, bool repr, uint8_t trust)
{
    char digits[800];
    tpl_value text;
    size_t mark = pm_tpl_mark(run);
    if (type && strchr("dxXoeEfFgG", type)) {
        if (!number_text(run, value, f, type, digits, sizeof(digits)))
            return false;
        pm_tpl_puts(run, digits, value.trust);
    } else if (repr) {
        pm_tpl_put_repr(run, value);
    } else {
        pm_tpl_put_value(run, value);
    }
    if (!pm_tpl_take(run, mark, false, &text))
        return false;
    tpl_str s = *text.s;
    bool number = type && type != 's';
    if (!number && f->precision >= 0)
        s.len = pm_tpl_offset(s.data, s.len, (size_t)f->precision);
    size_t sign_len = number && s.len && strchr("+- ", s.data[0]);
    put_padded(run, f, &s, sign_len, f->align, trust);
    return run->status == PM_OK;
}

/* ---- format % args ---- */

static bool next_percent(tpl_run *run, tpl_value args, const tpl_str *name, size_t *used, tpl_value *out)
{
    bool tuple = args.kind == TPL_SEQ && args.seq->flavour == TPL_TUPLE;
    if (name) {
        const tpl_value *found =
            args.kind == TPL_DICT ? pm_tpl_dict_get(run, args.dict, (tpl_value){.kind = TPL_STR, .s = name}) : NULL;
        if (!found)
            return pm_tpl_fail(run, PM_ERR_INVALID, "the format wants a value named '%.*s'", (int)name->len,
                               name->data);
        *out = *found;
        return true;
    }
    if (*used >= (tuple ? args.seq->n : 1))
        return pm_tpl_fail(run, PM_ERR_INVALID, "the format wants more values than there are");
    *out = tuple ? args.seq->items[*used] : args;
    ++*used;
    return true;
}

/* One conversion; s->data[*at] follows the '%'. */
static bool put_percent(tpl_run *run, const tpl_str *s, size_t *at, tpl_value args, size_t *used)
{
    uint8_t trust = pm_tpl_byte_trust(s, *at - 1);
    field f = {.width = -1, .precision = -1, .align = '>'};
    tpl_str name = *s;
    bool named = false;
    if (*at < s->len && s->data[*at] == '(') {
        const char *close = memchr(s->data + *at, ')', s->len - *at);
        if (!close)
            return pm_tpl_fail(run, PM_ERR_INVALID, "the format has a name that is not closed");
        name.data = s->data + *at + 1;
        name.len = (size_t)(close - name.data);
        *at += name.len + 2;
        named = true;
    }
    for (; *at < s->len && strchr("-+ #0", s->data[*at]) && s->data[*at]; ++*at) {
        char c = s->data[*at];
        f.align = c == '-' ? '<' : f.align;
        f.sign = c == '+' || (c == ' ' && !f.sign) ? c : f.sign;
        f.alternate |= c == '#';
        f.zero |= c == '0';
    }
    f.width = read_number(s, at);
    if (*at < s->len && s->data[*at] == '.') {
        ++*at;
        f.precision = read_number(s, at);
        if (f.precision < 0)
            f.precision = 0;
    }
    char type = *at < s->len ? s->data[(*at)++] : 0;
    tpl_value value;
    if (type == '%') {
        pm_tpl_put(run, "%", 1, trust);
        return true;
    }
    if (!type || !strchr("sdiuxXoeEfFgGr", type))
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "the conversion %%%c is not supported", type ? type : ' ');
    if (!next_percent(run, args, named ? &name : NULL, used, &value))
        return false;
    if (type == 'i' || type == 'u')
        type = 'd';
    bool text = type == 's' || type == 'r';
    if (!text && (!pm_tpl_is_number(value) || (strchr("xXo", type) && value.kind == TPL_FLOAT)))
        return pm_tpl_fail(run, PM_ERR_INVALID, "%%%c needs a number, not a %s", type, pm_tpl_type(value));
    if (type == 'd' && value.kind == TPL_FLOAT && !(fabs(value.f) < 0x1p63))
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "%%d: the number does not fit 64 bits");
    if (!text && f.zero && f.align == '>') {
        f.fill = '0';
        f.align = '=';
    }
    tpl_value escaped;
    if (s->markup && text && !(value.kind == TPL_STR && value.s->markup)) {
        size_t mark = pm_tpl_mark(run);
        if (!pm_tpl_str(run, value, &escaped))
            return false;
        pm_tpl_put_escaped(run, escaped.s);
        if (!pm_tpl_take(run, mark, true, &value))
            return false;
    }
    return put_field(run, value, &f, text ? 's' : type, type == 'r', trust);
}

bool pm_tpl_percent(tpl_run *run, const tpl_str *format, tpl_value args, tpl_value *out)
{
    size_t mark = pm_tpl_mark(run), used = 0, plain = 0;
    for (size_t at = 0; at < format->len;) {
        if (format->data[at] != '%') {
            at++;
            continue;
        }
        pm_tpl_put_piece(run, format, plain, at++);
        if (!pm_tpl_step(run, 1) || !put_percent(run, format, &at, args, &used))
            return false;
        plain = at;
    }
    pm_tpl_put_piece(run, format, plain, format->len);
    bool tuple = args.kind == TPL_SEQ && args.seq->flavour == TPL_TUPLE;
    /* Like Python, leave what could be a mapping unused: all that has items and is no string or tuple. */
    bool mapping = args.kind == TPL_DICT || args.kind == TPL_UNDEFINED ||
                   (args.kind == TPL_SEQ && (args.seq->flavour == TPL_LIST || args.seq->flavour == TPL_RANGE));
    if (tuple ? used < args.seq->n : !used && !mapping)
        return pm_tpl_fail(run, PM_ERR_INVALID, "not all values were used by the format");
    return pm_tpl_take(run, mark, format->markup, out);
}

/* ---- format.format(args) ---- */

/* Reads name, .attribute and [item] up to '!', ':' or the end. */
static bool find_value(tpl_run *run, const tpl_str *spec, size_t *at, const tpl_args *args, size_t *next,
                       tpl_value *out)
{
    size_t from = *at;
    while (*at < spec->len && !strchr(".[!:", spec->data[*at]))
        ++*at;
    char name[128];
    if (*at - from >= sizeof(name))
        return pm_tpl_fail(run, PM_ERR_INVALID, "a field of the format has a long name");
    memcpy(name, spec->data + from, *at - from);
    name[*at - from] = 0;
    bool number = *at == from || strspn(name, "0123456789") == *at - from, found = false;
    if (number) {
        size_t index = *at == from ? (*next)++ : strtoul(name, NULL, 10);
        found = index < args->n;
        *out = found ? args->pos[index] : pm_tpl_none();
    }
    for (size_t i = 0; !number && i < args->n_kw && !found; i++) {
        found = !strcmp(args->kw[i].name, name);
        *out = args->kw[i].value;
    }
    if (!found)
        return pm_tpl_fail(run, PM_ERR_INVALID, "the format has no value for field '%s'", name);
    while (*at < spec->len && strchr(".[", spec->data[*at])) {
        bool item = spec->data[(*at)++] == '[';
        from = *at;
        while (*at < spec->len && !(item ? spec->data[*at] == ']' : strchr(".[!:", spec->data[*at]) != NULL))
            ++*at;
        char *key = pm_tpl_new(run, *at - from + 1, 1);
        if (!key)
            return false;
        memcpy(key, spec->data + from, *at - from);
        tpl_value text;
        bool digits = *key && strspn(key, "0123456789") == *at - from && *at - from < 10;
        if (item && *at < spec->len)
            ++*at;
        if (!item    ? !pm_tpl_getattr(run, *out, key, out)
            : digits ? !pm_tpl_getitem(run, *out, pm_tpl_int(strtol(key, NULL, 10), 1), out)
                     : !pm_tpl_text(run, key, strlen(key), 1, &text) || !pm_tpl_getitem(run, *out, text, out))
            return false;
    }
    return true;
}

/* [[fill]align][sign][#][0][width][.precision][type] */
static bool read_spec(tpl_run *run, const tpl_str *spec, size_t at, field *f)
{
    static const char aligns[] = "<>^=";
    *f = (field){.width = -1, .precision = -1};
    if (at + 1 < spec->len && strchr(aligns, spec->data[at + 1]) && (signed char)spec->data[at] > 0) {
        f->fill = spec->data[at];
        f->align = spec->data[at + 1];
        at += 2;
    } else if (at < spec->len && strchr(aligns, spec->data[at])) {
        f->align = spec->data[at++];
    }
    if (at < spec->len && strchr("+- ", spec->data[at]))
        f->sign = spec->data[at++];
    if (at < spec->len && spec->data[at] == '#') {
        f->alternate = true;
        at++;
    }
    if (at < spec->len && spec->data[at] == '0') {
        f->zero = true;
        at++;
    }
    f->width = read_number(spec, &at);
    if (at < spec->len && spec->data[at] == '.') {
        at++;
        f->precision = read_number(spec, &at);
        if (f->precision < 0)
            return pm_tpl_fail(run, PM_ERR_INVALID, "a format lacks its precision");
    }
    if (at < spec->len)
        f->type = spec->data[at++];
    if (at < spec->len || (f->type && !strchr("sdxXoeEfFgG", f->type)))
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "the format '%.*s' is not supported", (int)spec->len, spec->data);
    return true;
}

static bool put_formatted(tpl_run *run, const tpl_str *spec, const tpl_args *args, size_t *next, bool markup,
                          uint8_t trust)
{
    size_t at = 0;
    tpl_value value;
    if (!find_value(run, spec, &at, args, next, &value))
        return false;
    char conversion = 0;
    if (at < spec->len && spec->data[at] == '!') {
        conversion = at + 1 < spec->len ? spec->data[at + 1] : 0;
        if (conversion != 's' && conversion != 'r')
            return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "a format has an unknown conversion");
        at += 2;
    }
    if (at < spec->len && spec->data[at++] != ':')
        return pm_tpl_fail(run, PM_ERR_INVALID, "the format field '%.*s' cannot be read", (int)spec->len, spec->data);
    if (markup)
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "format on escaped text is not supported");
    field f;
    bool plain = at >= spec->len;
    if (!read_spec(run, spec, at, &f))
        return false;
    bool number = !conversion && pm_tpl_is_number(value) && !(plain && value.kind == TPL_BOOL);
    bool wants_number = f.type && f.type != 's';
    if ((wants_number && (!pm_tpl_is_number(value) || conversion)) || (f.type == 's' && number) ||
        (f.type && strchr("dxXo", f.type) && value.kind == TPL_FLOAT) || (f.alternate && !wants_number))
        return pm_tpl_fail(run, PM_ERR_INVALID, "the format '%.*s' does not suit a %s", (int)spec->len, spec->data,
                           pm_tpl_type(value));
    if (!plain && !number && value.kind != TPL_STR && !conversion && !wants_number)
        return pm_tpl_fail(run, PM_ERR_INVALID, "a %s cannot be formatted with '%.*s'", pm_tpl_type(value),
                           (int)spec->len, spec->data);
    char type = f.type;
    if (number && !type)
        type = value.kind == TPL_FLOAT ? 0 : 'd';
    if (!type && (f.sign || (number && f.precision >= 0) || (!number && f.align == '=')))
        return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "the format '%.*s' is not supported", (int)spec->len, spec->data);
    if (f.zero && !f.fill)
        f.fill = '0';
    if (f.zero && !f.align)
        f.align = number ? '=' : '<';
    if (!f.align)
        f.align = number ? '>' : '<';
    return put_field(run, value, &f, type, conversion == 'r', trust);
}

bool pm_tpl_format(tpl_run *run, const tpl_str *format, const tpl_args *args, tpl_value *out)
{
    size_t mark = pm_tpl_mark(run), next = 0;
    for (size_t at = 0; at < format->len;) {
        char c = format->data[at];
        size_t from = at++;
        if (c != '{' && c != '}') {
            while (at < format->len && format->data[at] != '{' && format->data[at] != '}')
                at++;
            pm_tpl_put_piece(run, format, from, at);
            continue;
        }
        if (at < format->len && format->data[at] == c) {
            pm_tpl_put_piece(run, format, from, at++);
            continue;
        }
        const char *close = c == '{' ? memchr(format->data + at, '}', format->len - at) : NULL;
        if (!close)
            return pm_tpl_fail(run, PM_ERR_INVALID, "a format has a single '%c'", c);
        tpl_str spec = {.data = format->data + at, .len = (size_t)(close - format->data) - at, .uniform = 1};
        if (spec.len && memchr(spec.data, '{', spec.len))
            return pm_tpl_fail(run, PM_ERR_UNSUPPORTED, "nested fields in a format are not supported");
        if (!pm_tpl_step(run, 1) ||
            !put_formatted(run, &spec, args, &next, format->markup, pm_tpl_byte_trust(format, from)))
            return false;
        at += spec.len + 1;
    }
    return pm_tpl_take(run, mark, format->markup, out);
}
