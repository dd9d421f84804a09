/* A whole answer as a chat message. */
#include "text/reply.h"

#include <jansson.h>
#include <stdio.h>

typedef struct parts {
    pm_buf content, reasoning;
    json_t *calls;
    bool failed;
} parts;

/* A call's object, with what is known at its beginning. Nine letters and digits are what Mistral's templates want of an
 * id; the others take any. */
static json_t *new_call(const pm_event *event)
{
    char number[32];
    snprintf(number, sizeof(number), "call%05zu", event->call);
    json_t *id = event->id ? json_stringn(event->id, event->id_len) : json_string(number);
    return json_pack("{s:o, s:s, s:{s:s%}}", "id", id, "type", "function", "function", "name", event->text, event->len);
}

/* The function of the call at work. */
static json_t *last_function(const parts *got)
{
    const json_t *calls = got->calls;
    return json_object_get(json_array_get(calls, json_array_size(calls) - 1), "function");
}

static void on_event(void *user, const pm_event *event)
{
    parts *got = user;
    int status = 0;
    switch (event->kind) {
    case PM_EVENT_TEXT: status = pm_buf_add(&got->content, event->text, event->len); break;
    case PM_EVENT_REASONING: status = pm_buf_add(&got->reasoning, event->text, event->len); break;
    case PM_EVENT_CALL: status = json_array_append_new(got->calls, new_call(event)); break;
    case PM_EVENT_ARGUMENTS: /* the parser gives them out whole */
        status = json_object_set_new(last_function(got), "arguments", json_stringn(event->text, event->len));
        break;
    case PM_EVENT_CALL_END: break;
    }
    got->failed = got->failed || status != 0;
}

/* The text of the message; NULL without memory. */
static char *write_message(parts *got)
{
    json_t *object = json_pack("{s:s, s:s%}", "role", "assistant", "content",
                               got->content.data ? got->content.data : "", got->content.len);
    int status = object ? 0 : -1;
    if (status == 0 && got->reasoning.len)
        status =
            json_object_set_new(object, "reasoning_content", json_stringn(got->reasoning.data, got->reasoning.len));
    if (status == 0 && json_array_size(got->calls))
        status = json_object_set(object, "tool_calls", got->calls);
    char *text = status == 0 ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

int pm_reply_message(pm_reply_format format, const pm_parser_options *options, const char *text, size_t len, char **out,
                     pm_error *err)
{
    pm_parser *parser = NULL;
    size_t bad;
    if (!pm_utf8_valid(text, len, &bad))
        return pm_fail(err, PM_ERR_INVALID, "the answer is not UTF-8 at byte %zu", bad);
    parts got = {.calls = json_array()};
    pm_parser_options own = *options;
    own.on_event = on_event;
    own.user = &got;
    int status = got.calls ? pm_reply_new(&parser, format, &own, err) : pm_fail_memory(err);
    if (status == PM_OK)
        status = pm_parser_feed(parser, text, len, err);
    if (status == PM_OK)
        status = pm_parser_end(parser, err);
    if (status == PM_OK) {
        char *written = got.failed ? NULL : write_message(&got);
        if (written)
            *out = written;
        else
            status = pm_fail_memory(err);
    }
    pm_parser_free(parser);
    pm_buf_free(&got.content);
    pm_buf_free(&got.reasoning);
    json_decref(got.calls);
    return status;
}
