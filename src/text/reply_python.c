/* Python literals as JSON. */
#include "text/reply_parts.h"

#include <ctype.h>
#include <string.h>

/* The words that Python, and templates that write its values, have in place of JSON's. */
static const struct {
    const char *text, *json;
} words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
             {"true", "true"}, {"false", "false"}, {"null", "null"}};

static int hex_value(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* n hexadecimal digits, or -1. */
static long hex_digits(const char *text, size_t len, size_t at, size_t n)
{
    long value = 0;
    if (n > len - at)
        return -1;
    for (size_t i = at; i < at + n; i++) {
        if (hex_value(text[i]) < 0 || value > 0x10FFFF)
            return -1;
        value = value * 16 + hex_value(text[i]);
    }
    return value;
}

static pm_reading put_character(pm_buf *out, long c)
{
    char bytes[4];
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    if (c < 0 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        return PM_READ_FAIL;
    static const unsigned char first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; i > 0; i--, c >>= 6)
        bytes[i] = (char)(0x80 | (c & 0x3F));
    bytes[0] = (char)(first[n] | c);
    return pm_reading_of(pm_buf_add(out, bytes, (size_t)n));
}

/* The escape of n digits at text[*at]; a pair of surrogates, as JSON writes one, is one character. */
static pm_reading put_numbered(pm_buf *out, const char *text, size_t len, size_t *at, size_t n)
{
    long c = hex_digits(text, len, *at, n);
    *at += n;
    if (c >= 0xD800 && c < 0xDC00 && n == 4 && len - *at >= 6 && text[*at] == '\\' && text[*at + 1] == 'u') {
        long low = hex_digits(text, len, *at + 2, 4);
        if (low >= 0xDC00 && low < 0xE000) {
            c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
            *at += 6;
        }
    }
    return put_character(out, c);
}

/* Appends what the escape after the backslash at text[*at - 1] stands for. */
static pm_reading put_escape(pm_buf *out, const char *text, size_t len, size_t *at)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = text[(*at)++];
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple)
        return pm_reading_of(pm_buf_add(out, &to[simple - from], 1));
    if (c == 'x' || c == 'u' || c == 'U')
        return put_numbered(out, text, len, at, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    const char kept[] = {'\\', c}; /* Python keeps an escape that it does not know */
    return pm_reading_of(pm_buf_add(out, kept, 2));
}

/* Appends to `out` what the string at text[*at] says. */
static pm_reading put_unquoted(pm_buf *out, const char *text, size_t len, size_t *at)
{
    char quote = text[(*at)++];
    pm_reading read = PM_READ_DONE;
    while (read == PM_READ_DONE && *at < len && text[*at] != quote) {
        char c = text[(*at)++];
        if (c == '\n' || (c == '\\' && *at == len))
            return PM_READ_FAIL;
        read = c == '\\' ? put_escape(out, text, len, at) : pm_reading_of(pm_buf_add(out, &c, 1));
    }
    if (read == PM_READ_DONE && (*at)++ >= len)
        return PM_READ_FAIL;
    return read;
}

/* Appends strings that follow one another as one. */
static pm_reading put_strings(pm_buf *out, const char *text, size_t len, size_t *at)
{
    pm_buf value = {0};
    pm_reading read = pm_reading_of(pm_buf_reserve(&value, 0));
    while (read == PM_READ_DONE && *at < len && (text[*at] == '"' || text[*at] == '\'')) {
        read = put_unquoted(&value, text, len, at);
        *at = read == PM_READ_DONE ? pm_skip_space(text, len, *at) : *at;
    }
    if (read == PM_READ_DONE)
        read = pm_put_string(out, value.data, value.len);
    pm_buf_free(&value);
    return read;
}

/* Appends a number as JSON has it: no plus sign, no underscores, digits on both sides of the point. */
static pm_reading put_number(pm_buf *out, const char *text, size_t len, size_t *at)
{
    char number[64];
    size_t n = 0, start = *at + (text[*at] == '+');
    for (*at = start; *at < len && (isdigit((unsigned char)text[*at]) || strchr("+-._eE", text[*at])); ++*at) {
        char c = text[*at], before = n ? number[n - 1] : 0, after = *at + 1 < len ? text[*at + 1] : 0;
        if (n + 3 > sizeof(number) || !c)
            return PM_READ_FAIL;
        if (c == '.' && !isdigit((unsigned char)before))
            number[n++] = '0';
        if (c != '_')
            number[n++] = c;
        if (c == '.' && !isdigit((unsigned char)after))
            number[n++] = '0';
    }
    return pm_reading_of(pm_buf_add(out, number, n)); /* whether it is a number is seen when the whole is checked */
}

static pm_reading put_word(pm_buf *out, const char *text, size_t len, size_t *at)
{
    for (size_t i = 0; i < PM_COUNT(words); i++) {
        size_t n = strlen(words[i].text);
        if (n > len - *at || memcmp(text + *at, words[i].text, n) != 0)
            continue;
        *at += n;
        return pm_reading_of(pm_buf_add(out, words[i].json, strlen(words[i].json)));
    }
    return PM_READ_FAIL;
}

static pm_reading put_nested(pm_buf *out, const char *text, size_t len, size_t *at, int depth);

/* Appends list, tuple or dictionary. */
static pm_reading put_collection(pm_buf *out, const char *text, size_t len, size_t *at, int depth)
{
    char open = text[(*at)++], close = open == '(' ? ')' : open == '[' ? ']' : '}';
    pm_reading read = pm_reading_of(pm_buf_add(out, open == '{' ? "{" : "[", 1));
    for (int n = 0; read == PM_READ_DONE; n++) {
        *at = pm_skip_space(text, len, *at);
        bool comma = n && *at < len && text[*at] == ',';
        *at = comma ? pm_skip_space(text, len, *at + 1) : *at;
        if (*at < len && text[*at] == close) {
            ++*at;
            return pm_reading_of(pm_buf_add(out, open == '{' ? "}" : "]", 1));
        }
        if (n && !comma)
            return PM_READ_FAIL;
        if (n)
            read = pm_reading_of(pm_buf_add(out, ", ", 2));
        if (read == PM_READ_DONE && open == '{') {
            read = *at < len && strchr("\"'", text[*at]) ? put_strings(out, text, len, at) : PM_READ_FAIL;
            if (read == PM_READ_DONE && (*at == len || text[(*at)++] != ':'))
                read = PM_READ_FAIL;
            if (read == PM_READ_DONE)
                read = pm_reading_of(pm_buf_add(out, ": ", 2));
        }
        if (read == PM_READ_DONE)
            read = put_nested(out, text, len, at, depth + 1);
    }
    return read;
}

static pm_reading put_nested(pm_buf *out, const char *text, size_t len, size_t *at, int depth)
{
    *at = pm_skip_space(text, len, *at);
    char c = *at < len ? text[*at] : 0;
    if (!c || depth > PM_MAX_NEST)
        return PM_READ_FAIL;
    if (c == '"' || c == '\'')
        return put_strings(out, text, len, at);
    if (strchr("[({", c))
        return put_collection(out, text, len, at, depth);
    return isdigit((unsigned char)c) || strchr("+-.", c) ? put_number(out, text, len, at)
                                                         : put_word(out, text, len, at);
}

pm_reading pm_put_python(pm_buf *out, const char *text, size_t len, size_t *at)
{
    return put_nested(out, text, len, at, 0);
}
