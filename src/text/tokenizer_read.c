/* The two large values of tokenizer.json, model.vocab and model.merges. A JSON library makes a value of each of their
 * hundreds of thousands of strings, which would be most of the time of loading, so they are cut out of the text and
 * read in one pass. */
#include "text/tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- finding them ---- */

static const char *skip_space(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r'))
        p++;
    return p;
}

/* Behind the string that starts at p; `end` when it has no end. */
static const char *skip_string(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        p += *p == '\\' && end - p > 1;
    return p < end ? p + 1 : end;
}

/* Behind the value that starts at p. Its brackets are only counted: whoever reads it checks it. */
static const char *skip_value(const char *p, const char *end)
{
    size_t depth = 0;
    while (p < end) {
        char c = *p;
        if (c == '"') {
            p = skip_string(p, end);
        } else if (c == '{' || c == '[') {
            depth++;
            p++;
        } else if (c == '}' || c == ']' || c == ',') {
            if (depth == 0)
                return p;
            depth -= c != ',';
            p++;
        } else {
            p++;
            continue;
        }
        if (depth == 0)
            return p;
    }
    return end;
}

/* The start of the value of the object's next member; p is behind the opening brace or a value. NULL when there is
 * none. */
static const char *next_member(const char *p, const char *end, const char **key, size_t *key_len)
{
    p = skip_space(p, end);
    if (p < end && *p == ',')
        p = skip_space(p + 1, end);
    if (p == end || *p != '"')
        return NULL;
    *key = p + 1;
    p = skip_string(p, end);
    *key_len = (size_t)(p - *key) - 1;
    p = skip_space(p, end);
    return p < end && *p == ':' ? skip_space(p + 1, end) : NULL;
}

void pm_cut_large(const char *text, size_t len, pm_span *vocab, pm_span *merges)
{
    const char *end = text + len, *p = skip_space(text, end), *key;
    size_t key_len;
    *vocab = *merges = (pm_span){0};
    if (p == end || *p != '{')
        return;
    for (p++; (p = next_member(p, end, &key, &key_len)); p = skip_value(p, end))
        if (key_len == 5 && memcmp(key, "model", 5) == 0)
            break;
    if (!p || p == end || *p != '{')
        return;
    for (p++; (p = next_member(p, end, &key, &key_len));) {
        const char *value = p;
        p = skip_value(p, end);
        if (key_len == 5 && memcmp(key, "vocab", 5) == 0)
            *vocab = (pm_span){value, (size_t)(p - value)};
        if (key_len == 6 && memcmp(key, "merges", 6) == 0)
            *merges = (pm_span){value, (size_t)(p - value)};
    }
}

/* ---- reading them ---- */

void pm_reader_start(pm_reader *reader, const pm_tok_file *file, const char *where, const pm_span *span)
{
    const char *text = span->text ? span->text : "";
    *reader = (pm_reader){file, where, text, text, text + span->len};
}

bool pm_reader_takes(pm_reader *reader, char c)
{
    reader->at = skip_space(reader->at, reader->end);
    if (reader->at == reader->end || *reader->at != c)
        return false;
    reader->at++;
    return true;
}

int pm_reader_fail(const pm_reader *reader, const char *what)
{
    return pm_fail(reader->file->err, PM_ERR_FORMAT, "%s: %s is malformed: %s at its byte %zu", reader->file->path,
                   reader->where, what, (size_t)(reader->at - reader->start));
}

/* Four hexadecimal digits; -1 when they are not there. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = p + i < end ? p[i] : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The character of the escape at p, behind the backslash; *used receives its length. -1 when it is none, or U+0000. */
static int32_t escaped(const char *p, const char *end, size_t *used)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *letter = p < end ? memchr(letters, *p, sizeof(letters) - 1) : NULL;
    *used = 1;
    if (letter)
        return meanings[letter - letters];
    if (p == end || *p != 'u')
        return -1;
    int32_t c = hex4(p + 1, end);
    *used = 5;
    if (c >= 0xD800 && c < 0xDC00 && end - p >= 7 && p[5] == '\\' && p[6] == 'u') {
        int32_t low = hex4(p + 7, end);
        *used = 11;
        return low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00) : -1;
    }
    return c == 0 || (c >= 0xD800 && c < 0xE000) ? -1 : c;
}

int pm_reader_string(pm_reader *reader, char *out, size_t *len)
{
    if (!pm_reader_takes(reader, '"'))
        return pm_reader_fail(reader, "no string");
    char *o = out;
    while (reader->at < reader->end && *reader->at != '"') {
        unsigned char c = (unsigned char)*reader->at;
        if (c < 0x20)
            return pm_reader_fail(reader, "a control character in a string");
        if (c != '\\') {
            *o++ = *reader->at++;
            continue;
        }
        size_t used;
        int32_t character = escaped(reader->at + 1, reader->end, &used);
        if (character < 0)
            return pm_reader_fail(reader, "an impossible escape");
        reader->at += 1 + used;
        o += pm_char_put(character, o);
    }
    if (reader->at == reader->end)
        return pm_reader_fail(reader, "a string without an end");
    reader->at++;
    *len = (size_t)(o - out);
    return PM_OK;
}

int pm_reader_id(pm_reader *reader, const char *name, pm_token *out)
{
    reader->at = skip_space(reader->at, reader->end);
    const char *start = reader->at;
    bool negative = reader->at < reader->end && *reader->at == '-';
    int64_t id = 0;
    reader->at += negative;
    const char *digits = reader->at;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
        id = id < PM_TOKEN_MAX ? id * 10 + (*reader->at - '0') : PM_TOKEN_MAX;
        reader->at++;
    }
    const char *after = skip_space(reader->at, reader->end);
    if (reader->at == digits || (*digits == '0' && reader->at - digits > 1) || after == reader->end ||
        (*after != ',' && *after != '}'))
        return pm_fail(reader->file->err, PM_ERR_FORMAT, "%s: %s: the id of '%s' is not an integer", reader->file->path,
                       reader->where, name);
    if (id >= PM_TOKEN_MAX || negative)
        return pm_fail(reader->file->err, PM_ERR_FORMAT, "%s: %s: the id %.*s of '%s' is outside 0..%d",
                       reader->file->path, reader->where, (int)(reader->at - start < 24 ? reader->at - start : 24),
                       start, name, PM_TOKEN_MAX - 1);
    *out = (pm_token)id;
    return PM_OK;
}
