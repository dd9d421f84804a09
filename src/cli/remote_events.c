/* Events out of bytes: lines, of which those that begin with "data:" count, up to an empty one. */
#include "remote.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a server may send, at most: one event with its line, or an answer that is no stream; and a whole stream. */
static const size_t max_data = (size_t)4 << 20, max_stream = (size_t)256 << 20;

void pm_stream_fail(pm_stream *stream, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(stream->error, sizeof(stream->error), format, list);
    va_end(list);
    stream->failed = true;
}

bool pm_stream_keep(pm_stream *stream, const char *bytes, size_t n)
{
    if (n > max_data || stream->used > max_data - n) {
        pm_stream_fail(stream, "%s: sends more than %zu MB at once", stream->url, max_data >> 20);
        return false;
    }
    if (stream->used + n > stream->cap) {
        size_t cap = 2 * (stream->used + n);
        char *longer = realloc(stream->data, cap);
        if (!longer) {
            pm_stream_fail(stream, "out of memory");
            return false;
        }
        stream->data = longer;
        stream->cap = cap;
    }
    if (n)
        memcpy(stream->data + stream->used, bytes, n);
    stream->used += n;
    return true;
}

/* Gives the event out; its lines end in newlines. */
static bool end_event(pm_stream *stream)
{
    size_t len = stream->event;
    stream->event = stream->used = 0;
    if (len == 0)
        return true;
    stream->events++;
    if (len == 7 && memcmp(stream->data, "[DONE]\n", 7) == 0) {
        stream->done = true;
        return true;
    }
    json_error_t error;
    json_t *event = json_loadb(stream->data, len, JSON_ALLOW_NUL, &error);
    if (!event) {
        pm_stream_fail(stream, "%s: sends an event that is not JSON: %s", stream->url, error.text);
        return false;
    }
    int stop = stream->on_event(stream->user, event);
    json_decref(event);
    return stop == 0;
}

/* A whole line stands in data[event..used), without its end. */
static bool end_line(pm_stream *stream)
{
    char *line = stream->data + stream->event;
    size_t len = stream->used - stream->event;
    if (len > 0 && line[len - 1] == '\r')
        len--;
    if (len == 0)
        return end_event(stream);
    stream->used = stream->event;
    if (len < 5 || memcmp(line, "data:", 5) != 0)
        return true;
    size_t skip = len > 5 && line[5] == ' ' ? 6 : 5;
    memmove(line, line + skip, len - skip);
    line[len - skip] = '\n';
    stream->used = stream->event += len - skip + 1;
    return true;
}

bool pm_stream_take(pm_stream *stream, const char *bytes, size_t n)
{
    stream->received += n;
    if (stream->received > max_stream) {
        pm_stream_fail(stream, "%s: sends more than %zu MB in one answer", stream->url, max_stream >> 20);
        return false;
    }
    for (size_t i = 0; i < n && !stream->done;) {
        const char *newline = memchr(bytes + i, '\n', n - i);
        size_t part = newline ? (size_t)(newline - bytes) - i : n - i;
        if (!pm_stream_keep(stream, bytes + i, part) || (newline && !end_line(stream)))
            return false;
        i += part + (newline != NULL);
    }
    return true;
}
