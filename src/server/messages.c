/* The answer of /v1/messages, as Anthropic documents it: a list of blocks, whole or as a stream of events. */
#include "messages.h"

#include "blocks.h"
#include "state.h"

#include <string.h>

/* ---- blocks ---- */

/* What a block says, or its beginning. Nothing here signs reasoning. */
static json_t *block_of(const pm_choice *choice, size_t index, bool begins)
{
    const char *text;
    size_t len;
    const pm_block *block = pm_block_at(choice, index, &text, &len);
    len = begins ? 0 : len;
    if (block->kind == PM_BLOCK_TEXT)
        return json_pack("{s:s, s:s%}", "type", "text", "text", text, len);
    if (block->kind == PM_BLOCK_REASONING)
        return json_pack("{s:s, s:s%, s:s}", "type", "thinking", "thinking", text, len, "signature", "");
    const pm_call *call = &choice->calls[block->call];
    json_t *input = len ? json_loadb(text, len, 0, NULL) : json_object();
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", call->id, "name", call->name, "input", input);
}

/* ---- the whole ---- */

/* Tokens of the prompt that were in the cache are counted apart. */
static json_t *usage_of(const pm_job *job)
{
    pm_usage usage = pm_job_usage(job);
    return json_pack("{s:I, s:i, s:I, s:I}", "input_tokens", (json_int_t)(usage.prompt - usage.cached),
                     "cache_creation_input_tokens", 0, "cache_read_input_tokens", (json_int_t)usage.cached,
                     "output_tokens", (json_int_t)usage.answer);
}

/* Why the answer ended, and which stop sequence ended it. */
static json_t *ending_of(const pm_job *job)
{
    static const char *const reasons[] = {
        [PM_ENDING_STOP] = "end_turn", [PM_ENDING_LENGTH] = "max_tokens", [PM_ENDING_CALLS] = "tool_use"};
    const pm_choice *choice = &job->choices[0];
    bool stopped = choice->ending == PM_ENDING_STOP && choice->stop_string >= 0;
    return json_pack("{s:s, s:s?}", "stop_reason", stopped ? "stop_sequence" : reasons[choice->ending], "stop_sequence",
                     stopped ? job->ask.stop[choice->stop_string] : NULL);
}

static json_t *message_of(const pm_job *job)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:[], s:n, s:n, s:o}", "id", job->id, "type", "message", "role", "assistant",
                     "model", job->server->name, "content", "stop_reason", "stop_sequence", "usage", usage_of(job));
}

static json_t *error(const pm_refusal *refusal)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {
        {400, "invalid_request_error"}, {401, "authentication_error"},  {403, "permission_error"},
        {404, "not_found_error"},       {405, "invalid_request_error"}, {413, "request_too_large"},
        {429, "rate_limit_error"},      {503, "overloaded_error"},
    };
    const char *type = "api_error";
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (types[i].status == refusal->status)
            type = types[i].type;
    return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", type, "message", refusal->message);
}

/* ---- a stream ---- */

static void send(pm_job *job, const char *type, json_t *members)
{
    json_object_set_new(members, "type", json_string(type));
    pm_job_send(job, type, members);
}

static void begin(pm_job *job)
{
    send(job, "message_start", json_pack("{s:o}", "message", message_of(job)));
}

static void open_block(pm_choice *choice, size_t index)
{
    send(choice->job, "content_block_start",
         json_pack("{s:I, s:o}", "index", (json_int_t)index, "content_block", block_of(choice, index, true)));
}

static void add_to_block(pm_choice *choice, size_t index, const char *piece, size_t n)
{
    static const struct {
        const char *type, *member;
    } deltas[] = {
        [PM_BLOCK_TEXT] = {"text_delta", "text"},
        [PM_BLOCK_REASONING] = {"thinking_delta", "thinking"},
        [PM_BLOCK_CALL] = {"input_json_delta", "partial_json"},
    };
    const char *text;
    size_t len;
    pm_block_kind kind = pm_block_at(choice, index, &text, &len)->kind;
    send(choice->job, "content_block_delta",
         json_pack("{s:I, s:{s:s, s:s%}}", "index", (json_int_t)index, "delta", "type", deltas[kind].type,
                   deltas[kind].member, piece, n));
}

static void close_block(pm_choice *choice, size_t index)
{
    send(choice->job, "content_block_stop", json_pack("{s:I}", "index", (json_int_t)index));
}

static const pm_block_form form = {.open = open_block, .delta = add_to_block, .close = close_block};

static void piece(pm_choice *choice, const pm_event *event)
{
    pm_blocks_piece(choice, event, &form);
}

static void finish(pm_choice *choice)
{
    pm_blocks_finish(choice, &form);
}

static void end(pm_job *job)
{
    const pm_choice *choice = &job->choices[0];
    if (job->ask.stream) {
        send(job, "message_delta", json_pack("{s:o, s:o}", "delta", ending_of(job), "usage", usage_of(job)));
        send(job, "message_stop", json_object());
        return;
    }
    json_t *message = message_of(job), *content = json_object_get(message, "content");
    for (size_t i = 0; i < pm_blocks_count(choice); i++)
        json_array_append_new(content, block_of(choice, i, false));
    json_object_update_new(message, ending_of(job));
    pm_exchange_json(job->exchange, 200, message);
}

/* Of a stream that cannot go on. */
static void broken(pm_job *job, const pm_refusal *refusal)
{
    pm_job_send(job, "error", error(refusal));
}

const pm_dialect pm_messages_dialect = {
    .prefix = "msg_",
    .chat = "messages",
    .always = true,
    .ping = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
    .fields = pm_messages_fields,
    .read = pm_messages_read,
    .begin = begin,
    .piece = piece,
    .finish = finish,
    .end = end,
    .error = error,
    .broken = broken,
};
