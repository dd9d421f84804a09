/* Answers taken apart: whatever a model says, pieces make no difference, what is given out as a call is one, and
 * nothing else is lost.
 *
 * An input is a line with a format's name, with a + behind it when the prompt opened a reasoning block, and the answer.
 * An unknown name stands for some format. */
#define _GNU_SOURCE /* memmem */
#include "files/config.h"
#include "fuzz.h"
#include "text/reply.h"

#include <string.h>

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"o\":{\"type\":[\"object\",\"null\"]}}}}}]";

/* What came out: text and reasoning joined, and all events with their kinds. */
typedef struct result {
    pm_buf text, events;
    size_t calls, reasoning;
    pm_event_kind last;
} result;

static void add(pm_buf *out, const char *text, size_t len)
{
    PM_FUZZ_CHECK(pm_buf_add(out, len ? text : "", len) == PM_OK, "out of memory");
}

static void on_event(void *user, const pm_event *event)
{
    result *got = user;
    bool plain = event->kind == PM_EVENT_TEXT || event->kind == PM_EVENT_REASONING;
    if (!plain || !got->events.len || got->last != event->kind)
        add(&got->events, &"TRCAE"[event->kind], 1);
    got->last = event->kind;
    add(&got->events, event->text, event->len);
    add(&got->events, event->id, event->id_len);
    if (plain)
        add(&got->text, event->text, event->len);
    got->reasoning += event->kind == PM_EVENT_REASONING;
    got->calls += event->kind == PM_EVENT_CALL;
    PM_FUZZ_CHECK(plain || event->call == got->calls - 1, "call %zu", event->call);
    PM_FUZZ_CHECK(event->len || event->kind == PM_EVENT_CALL_END, "an empty event of kind %d", (int)event->kind);
    if (event->kind == PM_EVENT_ARGUMENTS) {
        json_t *object = NULL;
        int status = pm_json_text("arguments", event->text, event->len, &object, NULL);
        PM_FUZZ_CHECK(status == PM_OK && json_is_object(object), "%.*s", (int)event->len, event->text);
        json_decref(object);
    }
}

/* The events of an answer fed in pieces of `step` bytes, which is complete or was cut. */
static void run(pm_reply_format format, bool reasoning, const char *text, size_t len, size_t step, bool cut,
                result *got)
{
    pm_parser *parser;
    pm_error err;
    pm_parser_options options = {.tools = tools, .reasoning = reasoning, .on_event = on_event, .user = got};
    *got = (result){0};
    add(&got->text, "", 0);
    add(&got->events, "", 0);
    PM_FUZZ_CHECK(pm_reply_new(&parser, format, &options, &err) == PM_OK, "%s", err.message);
    for (size_t at = 0; at < len; at += step)
        PM_FUZZ_CHECK(pm_parser_feed(parser, text + at, len - at < step ? len - at : step, &err) == PM_OK, "%s",
                      err.message);
    PM_FUZZ_CHECK((cut ? pm_parser_cut : pm_parser_end)(parser, &err) == PM_OK, "%s", err.message);
    pm_parser_free(parser);
}

/* Whether `part` is what is left of `whole` when some bytes are taken out. */
static bool is_rest(const pm_buf *part, const char *whole, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len && n < part->len; i++)
        n += part->data[n] == whole[i];
    return n == part->len;
}

static pm_reply_format find_format(const char *name, size_t len)
{
    pm_reply_format format = pm_reply_detect("<think>", strlen("<think>"));
    format.calls = &pm_call_formats[len ? (unsigned char)name[0] % pm_n_call_formats : 0];
    for (size_t i = 0; i < pm_n_call_formats; i++)
        if (strlen(pm_call_formats[i].name) == len && memcmp(pm_call_formats[i].name, name, len) == 0)
            format.calls = &pm_call_formats[i];
    return format;
}

/* What comes out does not depend on the pieces, and is what went in. */
static void check(pm_reply_format format, bool reasoning, const char *text, size_t len, bool cut)
{
    size_t steps[] = {len + 1, 1, 1 + len % 7};
    result whole, pieces;
    run(format, reasoning, text, len, steps[0], cut, &whole);
    for (size_t i = 1; i < PM_COUNT(steps); i++) {
        run(format, reasoning, text, len, steps[i], cut, &pieces);
        PM_FUZZ_CHECK(pieces.events.len == whole.events.len &&
                          memcmp(pieces.events.data, whole.events.data, whole.events.len) == 0,
                      "in pieces of %zu: '%s', not '%s'", steps[i], pieces.events.data, whole.events.data);
        pm_buf_free(&pieces.text);
        pm_buf_free(&pieces.events);
    }
    PM_FUZZ_CHECK(is_rest(&whole.text, text, len), "'%s' is not in the answer", whole.text.data);
    PM_FUZZ_CHECK(cut || whole.calls || whole.reasoning || reasoning || memmem(text, len, "think>", 6) ||
                      whole.text.len == len,
                  "'%s' is not the whole answer", whole.text.data);
    pm_buf_free(&whole.text);
    pm_buf_free(&whole.events);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data, *end = size ? memchr(line, '\n', size) : NULL;
    size_t n = end ? (size_t)(end - line) : 0, start = end ? n + 1 : 0;
    bool reasoning = n && line[n - 1] == '+';
    pm_reply_format format = find_format(line, n - reasoning);
    check(format, reasoning, line + start, size - start, false);
    check(format, reasoning, line + start, size - start, true);
    return 0;
}
