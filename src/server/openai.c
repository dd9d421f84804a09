/* What OpenAI's protocols have in common. */
#include "job.h"
#include "state.h"

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
