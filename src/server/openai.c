/* What OpenAI's protocols have in common. */
#include "openai.h"

static const struct {
    int status;
    const char *type;
} error_types[] = {
    {400, "invalid_request_error"}, {401, "authentication_error"},  {403, "permission_error"},
    {404, "not_found_error"},       {405, "invalid_request_error"}, {413, "invalid_request_error"},
    {429, "rate_limit_error"},      {503, "service_unavailable"},
};

json_t *pm_openai_error(const pm_refusal *refusal)
{
    const char *type = "server_error";
    for (size_t i = 0; i < sizeof(error_types) / sizeof(*error_types); i++)
        if (error_types[i].status == refusal->status)
            type = error_types[i].type;
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", refusal->message, "type", type, "param",
                     *refusal->param ? refusal->param : NULL, "code", refusal->code);
}

json_t *pm_openai_usage(const pm_job *job)
{
    pm_usage usage = pm_job_usage(job);
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I}}", "prompt_tokens", (json_int_t)usage.prompt,
                     "completion_tokens", (json_int_t)usage.answer, "total_tokens",
                     (json_int_t)(usage.prompt + usage.answer), "prompt_tokens_details", "cached_tokens",
                     (json_int_t)usage.cached, "completion_tokens_details", "reasoning_tokens",
                     (json_int_t)usage.reasoning);
}

const char *pm_openai_finish(const pm_choice *choice)
{
    static const char *const names[] = {
        [PM_ENDING_STOP] = "stop", [PM_ENDING_LENGTH] = "length", [PM_ENDING_CALLS] = "tool_calls"};
    return names[choice->ending];
}

json_t *pm_openai_object(const pm_job *job, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", job->id, "object", object, "created",
                     (json_int_t)job->created, "model", job->server->name, "system_fingerprint", "polymath-" PM_VERSION,
                     "choices", choices);
}

void pm_openai_chunk(pm_choice *choice, const char *object, json_t *body, const char *finish)
{
    json_t *logprobs = json_object_get(body, "logprobs");
    json_object_set_new(body, "index", json_integer(choice->index));
    if (!logprobs)
        json_object_set_new(body, "logprobs", json_null());
    json_object_set_new(body, "finish_reason", finish ? json_string(finish) : json_null());
    pm_job_send(choice->job, NULL, pm_openai_object(choice->job, object, json_pack("[o]", body)));
}

void pm_openai_done(pm_job *job, const char *object)
{
    static const char done[] = "data: [DONE]\n\n";
    if (job->ask.include_usage) {
        json_t *last = pm_openai_object(job, object, json_array());
        json_object_set_new(last, "usage", pm_openai_usage(job));
        pm_job_send(job, NULL, last);
    }
    pm_exchange_write(job->exchange, done, sizeof(done) - 1);
}

void pm_openai_broken(pm_job *job, const pm_refusal *refusal)
{
    pm_job_send(job, NULL, pm_openai_error(refusal));
}
