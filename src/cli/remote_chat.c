/* One turn of a conversation with a server. */
#include "remote_chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CALLS = 256 };

typedef struct text {
    char *data; /* terminated when there is any */
    size_t len, cap;
} text;

typedef struct call {
    char *id;
    text name, arguments;
} call;

/* An answer as its events bring it. */
typedef struct answer {
    pm_show show;
    pm_stream stream;
    text content, reasoning;
    call calls[MAX_CALLS];
    size_t n_calls;
    char finish[32]; /* empty until the server says it */
    bool has_usage;
    size_t prompt, reused, tokens; /* as the server counts them */
    double start, first, last;     /* when it was asked, and when the first and the last piece came; 0: none has */
} answer;

/* Appends; a failure ends the stream. */
static bool append(answer *a, text *to, const char *bytes, size_t n)
{
    if (to->len + n + 1 > to->cap) {
        size_t cap = 2 * (to->len + n + 1);
        char *longer = realloc(to->data, cap);
        if (!longer) {
            pm_stream_fail(&a->stream, "out of memory");
            return false;
        }
        to->data = longer;
        to->cap = cap;
    }
    memcpy(to->data + to->len, bytes, n);
    to->len += n;
    to->data[to->len] = '\0';
    return true;
}

static bool take_text(answer *a, text *to, pm_event_kind kind, const json_t *value)
{
    pm_event event = {.kind = kind, .text = json_string_value(value), .len = json_string_length(value)};
    if (event.len == 0)
        return true;
    a->last = pm_seconds();
    a->first = a->first > 0 ? a->first : a->last;
    pm_show_event(&a->show, &event);
    return append(a, to, event.text, event.len);
}

static bool take_call(answer *a, const json_t *piece)
{
    const json_t *function = json_object_get(piece, "function"), *id = json_object_get(piece, "id");
    const json_t *name = json_object_get(function, "name"), *arguments = json_object_get(function, "arguments");
    json_int_t index = json_integer_value(json_object_get(piece, "index"));
    if (index < 0 || index >= MAX_CALLS) {
        pm_stream_fail(&a->stream, "%s: sends a call of a tool with the number %lld, and may send %d", a->stream.url,
                       (long long)index, MAX_CALLS);
        return false;
    }
    call *c = &a->calls[index];
    a->n_calls = a->n_calls > (size_t)index ? a->n_calls : (size_t)index + 1;
    a->last = pm_seconds();
    a->first = a->first > 0 ? a->first : a->last;
    if (json_is_string(id) && !c->id)
        c->id = strdup(json_string_value(id));
    return (!json_is_string(name) || append(a, &c->name, json_string_value(name), json_string_length(name))) &&
           (!json_is_string(arguments) ||
            append(a, &c->arguments, json_string_value(arguments), json_string_length(arguments)));
}

static size_t count_of(const json_t *object, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(object, name));
    return n > 0 ? (size_t)n : 0;
}

static void take_usage(answer *a, const json_t *usage)
{
    a->has_usage = true;
    a->prompt = count_of(usage, "prompt_tokens");
    a->reused = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    a->tokens = count_of(usage, "completion_tokens");
}

static int on_event(void *user, json_t *event)
{
    answer *a = user;
    const json_t *error = json_object_get(event, "error"), *usage = json_object_get(event, "usage");
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0), *reason, *thought;
    const json_t *delta = json_object_get(choice, "delta"), *calls = json_object_get(delta, "tool_calls"), *piece;
    size_t i;
    if (json_is_object(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        pm_stream_fail(&a->stream, "%s: %s", a->stream.url, message ? message : "reports an error");
        return 1;
    }
    if (json_is_object(usage))
        take_usage(a, usage);
    thought = json_object_get(delta, "reasoning_content");
    thought = json_is_string(thought) ? thought : json_object_get(delta, "reasoning");
    bool fine = take_text(a, &a->reasoning, PM_EVENT_REASONING, thought) &&
                take_text(a, &a->content, PM_EVENT_TEXT, json_object_get(delta, "content"));
    json_array_foreach(calls, i, piece) fine = fine && take_call(a, piece);
    reason = json_object_get(choice, "finish_reason");
    if (json_is_string(reason))
        snprintf(a->finish, sizeof(a->finish), "%s", json_string_value(reason));
    return !fine || a->show.write_error != 0;
}

/* Shows the calls, which are complete now. */
static void show_calls(answer *a)
{
    for (size_t i = 0; i < a->n_calls; i++) {
        const call *c = &a->calls[i];
        pm_event event = {.kind = PM_EVENT_CALL, .text = c->name.data, .len = c->name.len};
        pm_show_event(&a->show, &event);
        event = (pm_event){.kind = PM_EVENT_ARGUMENTS, .text = c->arguments.data, .len = c->arguments.len};
        pm_show_event(&a->show, &event);
        pm_show_event(&a->show, &(pm_event){.kind = PM_EVENT_CALL_END});
    }
}

/* No chat template takes NUL bytes as part of a message. */
static json_t *message_text(const text *from)
{
    for (char *nul; from->len && (nul = memchr(from->data, '\0', from->len));)
        *nul = '?';
    return json_stringn(from->len ? from->data : "", from->len);
}

/* The answer as a message of the conversation; NULL when out of memory. */
static json_t *message_of(const answer *a)
{
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", message_text(&a->content));
    bool fine = message != NULL;
    if (fine && a->reasoning.len)
        fine = json_object_set_new(message, "reasoning_content", message_text(&a->reasoning)) == 0;
    json_t *calls = a->n_calls ? json_array() : NULL;
    for (size_t i = 0; fine && i < a->n_calls; i++) {
        const call *c = &a->calls[i];
        char id[24];
        snprintf(id, sizeof(id), "call%05zu", i);
        fine = json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:o, s:o}}", "id", c->id ? c->id : id, "type",
                                                      "function", "function", "name", message_text(&c->name),
                                                      "arguments", message_text(&c->arguments))) == 0;
    }
    if (fine && calls)
        fine = json_object_set(message, "tool_calls", calls) == 0;
    json_decref(calls);
    if (fine)
        return message;
    json_decref(message);
    return NULL;
}

static double speed_of(const answer *a)
{
    return a->tokens > 1 && a->last > a->first ? (double)(a->tokens - 1) / (a->last - a->first) : 0;
}

/* The speed of an answer, on stderr. */
static void report(const answer *a, bool interrupted)
{
    const char *ending = interrupted                        ? "; cancelled"
                         : strcmp(a->finish, "length") == 0 ? "; cut at the limit of tokens"
                                                            : "";
    double wait = a->first > 0 ? a->first - a->start : 0;
    if (a->has_usage)
        fprintf(stderr, "[prompt: %zu tokens (%zu reused) in %.3f s; answer: %zu tokens, %.0f tokens/s%s]\n", a->prompt,
                a->reused, wait, a->tokens, speed_of(a), ending);
    else
        fprintf(stderr, "[first word after %.3f s%s]\n", wait, ending);
}

/* Asks, and shows what comes until the answer ends or Ctrl-C does; an exit code. */
static int ask(pm_conversation *chat, answer *a, json_t *request, bool *interrupted)
{
    a->start = pm_seconds();
    pm_progress_start(&a->show.progress, "waiting for the server");
    pm_interrupt_begin(NULL);
    bool started = pm_stream_start(&a->stream, chat->remote, "chat/completions", request);
    bool ended = started && pm_remote_wait(chat->remote);
    *interrupted = started && !ended && pm_interrupted();
    pm_interrupt_end(isatty(STDIN_FILENO));
    bool failed = a->stream.failed || (!ended && !*interrupted);
    if (!failed)
        show_calls(a);
    if ((a->content.len || a->reasoning.len || !failed) && pm_show_end(&a->show) != PM_EXIT_OK)
        return PM_EXIT_FAILED;
    if (failed)
        return pm_cli_fail("%s", a->stream.failed ? a->stream.error : "out of memory");
    if (!*interrupted && !a->stream.done && !*a->finish)
        return pm_cli_fail("%s: the connection ended before the answer did", a->stream.url);
    return PM_EXIT_OK;
}

static void release(answer *a)
{
    pm_stream_close(&a->stream);
    free(a->content.data);
    free(a->reasoning.data);
    for (size_t i = 0; i < a->n_calls; i++) {
        free(a->calls[i].id);
        free(a->calls[i].name.data);
        free(a->calls[i].arguments.data);
    }
    free(a);
}

int pm_remote_turn(pm_conversation *chat)
{
    json_t *request = pm_remote_request(chat->remote, chat->args, chat->messages, chat->tools);
    answer *a = request ? calloc(1, sizeof(*a)) : NULL;
    if (!a) {
        json_decref(request);
        return request ? pm_cli_fail("out of memory") : PM_EXIT_FAILED;
    }
    bool interrupted = false;
    a->show.stream = true;
    a->stream.on_event = on_event;
    a->stream.user = a;
    int code = ask(chat, a, request, &interrupted);
    if (code == PM_EXIT_OK) {
        json_t *message = message_of(a);
        if (!message || json_array_append_new(chat->messages, message) != 0)
            code = pm_cli_fail("out of memory");
    }
    if (code == PM_EXIT_OK) {
        if (chat->args->value[PM_OPT_VERBOSE].given || pm_on_terminal())
            report(a, interrupted);
        chat->turns++;
        chat->read.reused += a->reused;
        chat->read.computed += a->prompt > a->reused ? a->prompt - a->reused : 0;
        chat->said += a->tokens;
        chat->seconds += a->last - a->first;
    }
    json_decref(request);
    release(a);
    return code;
}
