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

/* Appends to the last entry when it is of the same kind, else adds one. */
static void add_text(json_t *events, const char *kind, const pm_event *event)
{
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    const char *before = json_string_value(json_array_get(last, 0));
    json_t *text = json_stringn(event->text, event->len);
    if (before && strcmp(before, kind) == 0)
        json_array_set_new(last, 1,
                           json_pack("s+", json_string_value(json_array_get(last, 1)), json_string_value(text)));
    else
        json_array_append_new(events, json_pack("[s, O]", kind, text));
    json_decref(text);
}

static void on_event(void *user, const pm_event *event)
{
    json_t *events = user, *last = json_array_get(events, json_array_size(events) - 1);
    switch (event->kind) {
    case PM_EVENT_TEXT: add_text(events, "text", event); break;
    case PM_EVENT_REASONING: add_text(events, "reasoning", event); break;
    case PM_EVENT_CALL:
        json_array_append_new(events, json_pack("[s, s%, s#]", "call", event->text, event->len,
                                                event->id ? event->id : "", (int)event->id_len));
        break;
    case PM_EVENT_ARGUMENTS: json_array_append_new(last, json_stringn(event->text, event->len)); break;
    case PM_EVENT_CALL_END: break;
    }
}

static json_t *answer(const json_t *line)
{
    const json_t *source = json_object_get(line, "template"), *text = json_object_get(line, "text");
    const json_t *prompt = json_object_get(line, "prompt");
    size_t len = json_string_length(text), step = (size_t)json_integer_value(json_object_get(line, "pieces"));
    size_t n_prompt = json_string_length(prompt);
    char *tools = json_dumps(json_object_get(line, "tools"), JSON_ENCODE_ANY), *trust = malloc(n_prompt + 1);
    json_t *events = json_array();
    pm_parser *parser = NULL;
    pm_error err;
    if (!tools || !trust || !step)
        return NULL;
    memset(trust, 1, n_prompt);
    pm_reply_format format = pm_reply_detect(json_string_value(source), json_string_length(source));
    pm_parser_options options = {.tools = tools, .on_event = on_event, .user = events};
    options.reasoning = pm_reply_opened(format, json_string_value(prompt), trust, n_prompt);
    int status = pm_reply_new(&parser, format, &options, &err);
    for (size_t at = 0; status == PM_OK && at < len; at += step)
        status = pm_parser_feed(parser, json_string_value(text) + at, len - at < step ? len - at : step, &err);
    if (status == PM_OK)
        status = pm_parser_end(parser, &err);
    pm_parser_free(parser);
    free(tools);
    free(trust);
    if (status != PM_OK) {
        json_decref(events);
        return json_pack("{s:s}", "error", err.message);
    }
    return json_pack("{s:s?, s:s?, s:o}", "calls_format", format.calls ? format.calls->name : NULL, "reasoning_format",
                     format.reasoning ? format.reasoning->open : NULL, "events", events);
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
