/* Reads calls, byte by byte, as a format's pattern has them. */
#include "text/reply_parts.h"

#include "files/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 256 }; /* of functions, ids and the names of arguments */

/* ---- what was read ---- */

static void free_calls(pm_call_reader *reader)
{
    for (size_t i = 0; i < reader->n_calls; i++) {
        pm_buf_free(&reader->calls[i].name);
        pm_buf_free(&reader->calls[i].id);
        pm_buf_free(&reader->calls[i].arguments);
    }
    reader->n_calls = 0;
}

/* A new, empty call; NULL without memory. */
static pm_call *add_call(pm_call_reader *reader)
{
    if (pm_grow((void **)&reader->calls, &reader->calls_cap, reader->n_calls + 1, sizeof(*reader->calls)) != PM_OK)
        return NULL;
    pm_call *call = &reader->calls[reader->n_calls++];
    *call = (pm_call){0};
    return call;
}

/* ---- calls in JSON ---- */

typedef struct span {
    const char *text;
    size_t len;
} span;

/* The value at or after text[*at] of valid JSON; false when the brackets around it close. */
static bool next_value(const char *text, size_t len, size_t *at, span *out)
{
    size_t i = *at;
    while (i < len && strchr(" \t\r\n,:", text[i]))
        i++;
    if (i == len || strchr("}]", text[i]))
        return false;
    size_t start = i;
    pm_scan scan = {0};
    if (strchr("{[\"", text[i]))
        while (i < len && pm_scan_byte(&scan, text[i++], false) == PM_READ_MORE)
            ;
    else
        while (i < len && !strchr(" \t\r\n,]}", text[i]))
            i++;
    *out = (span){text + start, i - start};
    *at = i;
    return true;
}

/* The value of a member of a valid JSON object; false when there is none. */
static bool member(span object, const char *name, span *out)
{
    span key;
    for (size_t at = 1;
         next_value(object.text, object.len, &at, &key) && next_value(object.text, object.len, &at, out);)
        if (key.len == strlen(name) + 2 && memcmp(key.text + 1, name, key.len - 2) == 0)
            return true;
    return false;
}

/* Appends what a JSON string says. */
static pm_reading put_decoded(pm_buf *out, span string)
{
    if (string.text[0] != '"')
        return PM_READ_FAIL;
    json_t *value = json_loadb(string.text, string.len, JSON_DECODE_ANY, NULL);
    pm_reading read =
        value ? pm_reading_of(pm_buf_add(out, json_string_value(value), json_string_length(value))) : PM_READ_MEMORY;
    json_decref(value);
    return read;
}

/* The arguments of a call: an object, its text in a string, or none. */
static pm_reading put_arguments(pm_buf *out, span value)
{
    if (value.text[0] == '{')
        return pm_reading_of(pm_buf_add(out, value.text, value.len));
    if (value.len == 4 && memcmp(value.text, "null", 4) == 0)
        return pm_reading_of(pm_buf_add(out, "{}", 2));
    pm_reading read = put_decoded(out, value);
    return read == PM_READ_DONE ? pm_check_object(out->data, out->len) : read;
}

/* Adds the call that a valid JSON object describes. One without a marker around it must say what it is: it has
 * arguments, and where there are tools it names one. */
static pm_reading add_json_call(pm_call_reader *reader, span object)
{
    bool bare = reader->pattern[0] == '%';
    span name, arguments, id;
    bool has_arguments = member(object, "arguments", &arguments) || member(object, "parameters", &arguments);
    if (!member(object, "name", &name) || (bare && !has_arguments))
        return PM_READ_FAIL;
    pm_call *call = add_call(reader);
    pm_reading read = call ? put_decoded(&call->name, name) : PM_READ_MEMORY;
    if (read == PM_READ_DONE &&
        (call->name.len == 0 || (bare && reader->tools && !pm_has_tool(reader->tools, call->name.data))))
        read = PM_READ_FAIL;
    if (read == PM_READ_DONE && member(object, "id", &id) && id.text[0] == '"')
        read = put_decoded(&call->id, id);
    if (read != PM_READ_DONE)
        return read;
    return put_arguments(&call->arguments, has_arguments ? arguments : (span){"{}", 2});
}

/* Adds the calls of a JSON list. */
static pm_reading add_json_calls(pm_call_reader *reader, span list)
{
    json_t *valid = NULL;
    int status = pm_json_text("calls", list.text, list.len, &valid, NULL);
    json_decref(valid);
    span object;
    pm_reading read = PM_READ_FAIL;
    if (status != PM_OK)
        return pm_reading_of(status);
    for (size_t at = 1; next_value(list.text, list.len, &at, &object);) {
        read = object.text[0] == '{' ? add_json_call(reader, object) : PM_READ_FAIL;
        if (read != PM_READ_DONE)
            break;
    }
    return read;
}

/* ---- calls in Python ---- */

static bool take(const char *text, size_t len, size_t *at, char c)
{
    *at = pm_skip_space(text, len, *at);
    if (*at == len || text[*at] != c)
        return false;
    ++*at;
    return true;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80 || strchr("_.:/-", c);
}

/* A name made of name bytes other than the ones of `without`. */
static span take_word(const char *text, size_t len, size_t *at, const char *without)
{
    size_t start = *at = pm_skip_space(text, len, *at);
    while (*at < len && text[*at] && is_name(text[*at]) && !strchr(without, text[*at]))
        ++*at;
    return (span){text + start, *at - start};
}

/* Appends "key": value of one keyword argument. */
static pm_reading put_keyword(pm_buf *out, const char *text, size_t len, size_t *at)
{
    span key = take_word(text, len, at, ".:/-");
    if (key.len == 0 || !take(text, len, at, '='))
        return PM_READ_FAIL;
    pm_reading read = pm_put_string(out, key.text, key.len);
    if (read == PM_READ_DONE)
        read = pm_reading_of(pm_buf_add(out, ": ", 2));
    return read == PM_READ_DONE ? pm_put_python(out, text, len, at) : read;
}

/* Adds the call at text[*at]: NAME(KEY=VALUE, ...). */
static pm_reading add_python_call(pm_call_reader *reader, const char *text, size_t len, size_t *at)
{
    span name = take_word(text, len, at, ":/-");
    if (name.len == 0 || !take(text, len, at, '('))
        return PM_READ_FAIL;
    pm_call *call = add_call(reader);
    if (!call || pm_buf_add(&call->name, name.text, name.len) != PM_OK || pm_buf_add(&call->arguments, "{", 1) != PM_OK)
        return PM_READ_MEMORY;
    pm_buf *arguments = &call->arguments;
    while (!take(text, len, at, ')')) {
        if (arguments->len > 1 && !take(text, len, at, ','))
            return PM_READ_FAIL;
        if (arguments->len > 1 && take(text, len, at, ')'))
            break;
        if (arguments->len > 1 && pm_buf_add(arguments, ", ", 2) != PM_OK)
            return PM_READ_MEMORY;
        pm_reading read = put_keyword(arguments, text, len, at);
        if (read != PM_READ_DONE)
            return read;
    }
    pm_reading read = pm_reading_of(pm_buf_add(arguments, "}", 1));
    return read == PM_READ_DONE ? pm_check_object(arguments->data, arguments->len) : read;
}

/* Adds the calls of a Python list. */
static pm_reading add_python_calls(pm_call_reader *reader, span list)
{
    size_t at = 1;
    do {
        if (reader->n_calls && take(list.text, list.len, &at, ']'))
            return PM_READ_DONE; /* after a last comma */
        pm_reading read = add_python_call(reader, list.text, list.len, &at);
        if (read != PM_READ_DONE)
            return read;
    } while (take(list.text, list.len, &at, ','));
    return take(list.text, list.len, &at, ']') ? PM_READ_DONE : PM_READ_FAIL;
}

/* ---- the pattern ---- */

/* The length of the literal text at a place of the pattern. */
static size_t literal(const char *at)
{
    return strcspn(at, "%");
}

/* Goes on to the pattern's next part. */
static void advance(pm_call_reader *reader, size_t n)
{
    reader->at += n;
    reader->matched = 0;
}

void pm_call_begin(pm_call_reader *reader, size_t skip)
{
    free_calls(reader);
    reader->at = reader->pattern;
    advance(reader, skip);
    reader->value.open = false;
    reader->value.waiting = NULL;
    reader->name.len = reader->id.len = reader->type.len = reader->arguments.len = 0;
}

static pm_reading read_literal(pm_call_reader *reader, const char *block, size_t i)
{
    if (block[i] != reader->at[reader->matched])
        return PM_READ_FAIL;
    if (++reader->matched == literal(reader->at))
        advance(reader, reader->matched);
    return PM_READ_MORE;
}

static pm_reading read_space(pm_call_reader *reader, const char *block, size_t i)
{
    if (pm_is_space(block[i]))
        return PM_READ_MORE;
    advance(reader, 2);
    return PM_READ_NEXT;
}

/* The buffer of a part that is a name of some kind. */
static pm_buf *name_of(pm_call_reader *reader)
{
    char code = reader->at[1];
    return code == 'n' ? &reader->name : code == 'k' ? &reader->key : code == 't' ? &reader->type : &reader->id;
}

/* Takes the function's name out of "functions.NAME:NUMBER", either end of which may be missing. */
static pm_reading name_from_id(pm_call_reader *reader)
{
    static const char prefix[] = "functions.";
    const char *id = reader->id.data;
    size_t len = reader->id.len,
           start = len > strlen(prefix) && !memcmp(id, prefix, strlen(prefix)) ? strlen(prefix) : 0;
    size_t end = len;
    while (end > start && isdigit((unsigned char)id[end - 1]))
        end--;
    end = end > start + 1 && end < len && id[end - 1] == ':' ? end - 1 : len;
    reader->name.len = 0;
    return pm_reading_of(pm_buf_add(&reader->name, id + start, end - start));
}

/* Names of functions and ids end where other characters begin, those of arguments at the pattern's next literal. */
static pm_reading read_name(pm_call_reader *reader, const char *block, size_t i)
{
    char c = block[i], code = reader->at[1];
    bool word = code == 'n' || code == 'i' || code == 'd';
    pm_buf *name = name_of(reader);
    if (reader->matched == 0)
        name->len = 0;
    if (word ? c && is_name(c) : c != reader->at[2]) {
        if ((unsigned char)c < ' ' || ++reader->matched > NAME_MAX_BYTES)
            return PM_READ_FAIL;
        return pm_buf_add(name, &c, 1) == PM_OK ? PM_READ_MORE : PM_READ_MEMORY;
    }
    if (reader->matched == 0)
        return PM_READ_FAIL;
    advance(reader, 2);
    pm_reading read = code == 'i' ? name_from_id(reader) : PM_READ_DONE;
    return read == PM_READ_DONE ? PM_READ_NEXT : read;
}

/* Takes what was written in brackets. */
static pm_reading add_value(pm_call_reader *reader, char code, span value)
{
    pm_reading read;
    switch (code) {
    case 'p': /* told to, a model that calls in Python does so in JSON */
        if (value.text[pm_skip_space(value.text, value.len, 1)] != '{')
            return add_python_calls(reader, value);
        return add_json_calls(reader, value);
    case 'l': return add_json_calls(reader, value);
    case 'c':
        read = pm_check_object(value.text, value.len);
        return read == PM_READ_DONE ? add_json_call(reader, value) : read;
    default:
        return value.text[0] == '"' ? put_arguments(&reader->arguments, value)
                                    : pm_reading_of(pm_buf_add(&reader->arguments, value.text, value.len));
    }
}

static pm_reading read_brackets(pm_call_reader *reader, const char *block, size_t i)
{
    char c = block[i], code = reader->at[1];
    if (reader->matched == 0) {
        if (c != (code == 'p' || code == 'l' ? '[' : '{') && !(code == 'a' && c == '"'))
            return PM_READ_FAIL;
        reader->start = i;
        reader->scan = (pm_scan){0};
    }
    reader->matched++;
    pm_reading read = pm_scan_byte(&reader->scan, c, code == 'p');
    if (read != PM_READ_DONE)
        return read;
    read = add_value(reader, code, (span){block + reader->start, reader->matched});
    advance(reader, 2);
    return read == PM_READ_DONE ? PM_READ_MORE : read;
}

/* A value ends at the literal after it. That alone does not decide it, for a text may have this literal in it: what
 * comes next in the pattern must come next in the block too. */
static pm_reading read_value(pm_call_reader *reader, const char *block, size_t i)
{
    const char *end = reader->at + 2;
    if (!reader->value.open) {
        reader->value.open = true;
        reader->value.start = i;
    }
    if (block[i] == end[reader->matched])
        reader->matched++;
    else
        reader->matched = block[i] == end[0];
    if (reader->matched == literal(end)) {
        reader->value.end = i + 1 - reader->matched;
        reader->value.waiting = reader->at;
        advance(reader, 2 + reader->matched);
    }
    return PM_READ_MORE;
}

/* Adds the argument that was read. */
static pm_reading add_argument(pm_call_reader *reader, const char *block)
{
    const char *text = block + reader->value.start;
    size_t len = reader->value.end - reader->value.start;
    if (reader->value.waiting[1] == 'V') {
        size_t first = len && text[0] == '\n';
        text += first, len -= first;
        len -= len && text[len - 1] == '\n';
    }
    int types = reader->type.len ? (strcmp(reader->type.data, "true") == 0 ? PM_TYPE_STRING : PM_TYPE_ANY)
                                 : pm_argument_types(reader->tools, reader->name.data, reader->key.data);
    pm_buf *out = &reader->arguments;
    const char *between = out->len ? ", " : "{";
    if (pm_buf_add(out, between, strlen(between)) != PM_OK)
        return PM_READ_MEMORY;
    pm_reading read = pm_put_string(out, reader->key.data, reader->key.len);
    if (read == PM_READ_DONE)
        read = pm_reading_of(pm_buf_add(out, ": ", 2));
    if (read == PM_READ_DONE)
        read = pm_put_typed(out, text, len, types);
    reader->value.open = false;
    reader->value.waiting = NULL;
    return read;
}

/* Before and after a group: its first literal, or the one that follows it. */
static pm_reading read_choice(pm_call_reader *reader, const char *block, size_t i, size_t *at)
{
    const char *group = strstr(reader->pattern, "%(") + 2, *rest = strstr(group, "%)") + 2;
    size_t n = reader->matched++;
    if (n == 0) {
        reader->no_group = reader->no_rest = false;
        reader->start = i;
    }
    reader->no_group = reader->no_group || block[i] != group[n];
    reader->no_rest = reader->no_rest || block[i] != rest[n];
    if (reader->no_group && reader->no_rest) {
        if (!reader->value.waiting)
            return PM_READ_FAIL;
        *at = reader->start; /* the value goes on, with what was taken for what follows it */
        reader->at = reader->value.waiting;
        reader->matched = 0;
        reader->value.waiting = NULL;
        return PM_READ_MORE;
    }
    const char *chosen = reader->no_group ? rest : group;
    if (reader->matched < literal(chosen) || (!reader->no_group && !reader->no_rest))
        return PM_READ_MORE;
    pm_reading read = reader->value.waiting ? add_argument(reader, block) : PM_READ_DONE;
    reader->at = chosen;
    advance(reader, reader->matched);
    return read == PM_READ_DONE ? PM_READ_MORE : read;
}

/* The block is whole: makes the one call of a pattern that has its parts one by one. */
static pm_reading finish(pm_call_reader *reader)
{
    if (reader->n_calls)
        return PM_READ_DONE;
    pm_buf *arguments = &reader->arguments;
    const char *end = arguments->len == 0 ? "{}" : strstr(reader->pattern, "%k") ? "}" : "";
    if (pm_buf_add(arguments, end, strlen(end)) != PM_OK)
        return PM_READ_MEMORY;
    pm_reading read = pm_check_object(arguments->data, arguments->len);
    if (read != PM_READ_DONE)
        return read;
    pm_call *call = add_call(reader);
    if (!call || pm_buf_add(&call->name, reader->name.data, reader->name.len) != PM_OK ||
        (reader->id.len && pm_buf_add(&call->id, reader->id.data, reader->id.len) != PM_OK) ||
        pm_buf_add(&call->arguments, arguments->data, arguments->len) != PM_OK)
        return PM_READ_MEMORY;
    return PM_READ_DONE;
}

pm_reading pm_call_read(pm_call_reader *reader, const char *block, size_t len, size_t *at)
{
    size_t i = (*at)++;
    pm_reading read = i < len ? PM_READ_NEXT : PM_READ_FAIL;
    while (read == PM_READ_NEXT) {
        if (*reader->at != '%')
            read = read_literal(reader, block, i);
        else if (reader->at[1] == '_')
            read = read_space(reader, block, i);
        else if (strchr("nidkt", reader->at[1]))
            read = read_name(reader, block, i);
        else if (strchr("aclp", reader->at[1]))
            read = read_brackets(reader, block, i);
        else if (strchr("vV", reader->at[1]))
            read = read_value(reader, block, i);
        else
            read = read_choice(reader, block, i, at);
    }
    return read == PM_READ_MORE && *reader->at == '\0' ? finish(reader) : read;
}

/* ---- blocks that were cut ---- */

/* Whether a pattern from here on is only text that says nothing. */
static bool says_nothing(const char *pattern)
{
    for (const char *part = strchr(pattern, '%'); part; part = strchr(part + 2, '%'))
        if (part[1] != '_')
            return false;
    return true;
}

/* The length of a list that has begun, up to the last bracket that closed in it; 0: none did. */
static size_t whole_part(span list, bool python)
{
    pm_scan scan = {0};
    size_t whole = 0;
    for (size_t i = 0; i < list.len; i++) {
        int before = scan.depth;
        pm_scan_byte(&scan, list.text[i], python);
        if (before == 2 && scan.depth == 1)
            whole = i + 1;
    }
    return whole;
}

pm_reading pm_call_cut(pm_call_reader *reader, const char *block)
{
    char code = reader->at[0] == '%' ? reader->at[1] : '\0';
    if (says_nothing(reader->at))
        return finish(reader);
    if ((code != 'l' && code != 'p') || reader->matched == 0)
        return PM_READ_FAIL;
    pm_buf list = {0};
    size_t n = whole_part((span){block + reader->start, reader->matched}, code == 'p');
    pm_reading read = n ? PM_READ_DONE : PM_READ_FAIL;
    if (n && (pm_buf_add(&list, block + reader->start, n) != PM_OK || pm_buf_add(&list, "]", 1) != PM_OK))
        read = PM_READ_MEMORY;
    if (read == PM_READ_DONE)
        read = add_value(reader, code, (span){list.data, list.len});
    pm_buf_free(&list);
    return read;
}

void pm_call_reader_free(pm_call_reader *reader)
{
    free_calls(reader);
    free(reader->calls);
    pm_buf_free(&reader->name);
    pm_buf_free(&reader->id);
    pm_buf_free(&reader->key);
    pm_buf_free(&reader->type);
    pm_buf_free(&reader->arguments);
    *reader = (pm_call_reader){0};
}
