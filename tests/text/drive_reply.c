/* Takes answers apart for pytest.
 *
 * JSON lines {"template", "text", "tools", "prompt", "pieces"} on stdin: the source of a chat template, an answer,
 * tools or null, how the prompt ended, and how many bytes are fed at once. For each an answer line {"calls_format",
 * "reasoning_format", "events"}: [kind, text] of joined text and reasoning, ["call", name, id, arguments]. */
#include "text/reply.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What came out, and the text or reasoning that may go on. */
typedef struct record {
    json_t *events;
    pm_event_kind kind;
    pm_buf text;
} record;

/* Adds the text or reasoning that has come to its end; how many pieces it came in makes no difference. */
static void end_text(record *got)
{
    const char *kind = got->kind == PM_EVENT_REASONING ? "reasoning" : "text";
    if (got->text.len)
        json_array_append_new(got->events, json_pack("[s, s%]", kind, got->text.data, got->text.len));
    got->text.len = 0;
}

static void on_event(void *user, const pm_event *event)
{
    record *got = user;
    bool plain = event->kind == PM_EVENT_TEXT || event->kind == PM_EVENT_REASONING;
    if (!plain || got->kind != event->kind)
        end_text(got);
    got->kind = event->kind;
    if (plain)
        pm_buf_add(&got->text, event->text, event->len);
    if (event->kind == PM_EVENT_CALL)
        json_array_append_new(got->events, json_pack("[s, s%, s%]", "call", event->text, event->len,
                                                     event->id ? event->id : "", event->id_len));
    if (event->kind == PM_EVENT_ARGUMENTS)
        json_array_append_new(json_array_get(got->events, json_array_size(got->events) - 1),
                              json_stringn(event->text, event->len));
}

static json_t *answer(const json_t *line)
{
    const json_t *source = json_object_get(line, "template"), *text = json_object_get(line, "text");
    const json_t *prompt = json_object_get(line, "prompt");
    size_t len = json_string_length(text), step = (size_t)json_integer_value(json_object_get(line, "pieces"));
    size_t n_prompt = json_string_length(prompt);
    char *tools = json_dumps(json_object_get(line, "tools"), JSON_ENCODE_ANY), *trust = malloc(n_prompt + 1);
    record got = {.events = json_array()};
    pm_parser *parser = NULL;
    pm_error err;
    if (!tools || !trust || !step)
        return NULL;
    memset(trust, 1, n_prompt);
    pm_reply_format format = pm_reply_detect(json_string_value(source), json_string_length(source));
    pm_parser_options options = {.tools = tools, .on_event = on_event, .user = &got};
    options.reasoning = pm_reply_opened(format, json_string_value(prompt), trust, n_prompt);
    int status = pm_reply_new(&parser, format, &options, &err);
    for (size_t at = 0; status == PM_OK && at < len; at += step)
        status = pm_parser_feed(parser, json_string_value(text) + at, len - at < step ? len - at : step, &err);
    if (status == PM_OK)
        status = pm_parser_end(parser, &err);
    end_text(&got);
    pm_parser_free(parser);
    pm_buf_free(&got.text);
    free(tools);
    free(trust);
    if (status != PM_OK) {
        json_decref(got.events);
        return json_pack("{s:s}", "error", err.message);
    }
    return json_pack("{s:s?, s:s?, s:o}", "calls_format", format.calls ? format.calls->name : NULL, "reasoning_format",
                     format.reasoning ? format.reasoning->open : NULL, "events", got.events);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    int status = 0;
    for (ssize_t n; !status && (n = getline(&line, &cap, stdin)) > 0;) {
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL), *out = in ? answer(in) : NULL;
        status = !out || json_dumpf(out, stdout, JSON_COMPACT) != 0;
        putchar('\n');
        fflush(stdout);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    return status;
}
