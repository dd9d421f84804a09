/* Requests to the server: whatever a body says, it is refused with a sentence that can be sent, or becomes a chat that
 * the engine takes or refuses by name.
 *
 * An input is a line with a protocol's name and a body. An unknown name stands for some protocol. */
#include "engine/chat.h"
#include "fuzz.h"
#include "server/fields.h"
#include "server/job.h"

#include <string.h>

static const struct {
    const char *name;
    const pm_dialect *dialect;
} protocols[] = {
    {"chat", &pm_chat_dialect},
    {"completions", &pm_completions_dialect},
    {"responses", &pm_responses_dialect},
    {"messages", &pm_messages_dialect},
};

static const pm_dialect *find_protocol(const char *name, size_t len)
{
    for (size_t i = 0; i < PM_COUNT(protocols); i++)
        if (strlen(protocols[i].name) == len && memcmp(protocols[i].name, name, len) == 0)
            return protocols[i].dialect;
    return protocols[len ? (unsigned char)name[0] % PM_COUNT(protocols) : 0].dialect;
}

/* Every message has a role that the engine knows, and the whole what a template is given. */
static void check_chat(const pm_ask *ask)
{
    pm_chat chat;
    pm_refusal refusal = {0};
    pm_error err = {0};
    json_t *variables = NULL;
    if (!pm_ask_chat(ask, &chat, &refusal)) {
        PM_FUZZ_CHECK(refusal.status == 400, "status %d", refusal.status);
        return;
    }
    int status = pm_chat_variables(&chat, &variables, &err);
    PM_FUZZ_CHECK(status == PM_OK || (*err.message && err.code == status), "status %d: %s", status, err.message);
    PM_FUZZ_CHECK(status != PM_OK || json_array_size(json_object_get(variables, "messages")) > 0, "no messages");
    json_decref(variables);
    pm_ask_chat_free(&chat);
}

/* A refusal says what is wrong in words that JSON can hold, and its envelope can be made. */
static void check_refusal(const pm_dialect *dialect, const pm_refusal *refusal)
{
    PM_FUZZ_CHECK(refusal->status >= 400 && refusal->status < 500, "status %d: %s", refusal->status, refusal->message);
    PM_FUZZ_CHECK(*refusal->message && pm_utf8_valid(refusal->message, strlen(refusal->message), NULL), "'%s'",
                  refusal->message);
    json_t *envelope = dialect->error(refusal);
    PM_FUZZ_CHECK(json_is_object(json_object_get(envelope, "error")), "'%s'", refusal->message);
    json_decref(envelope);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data, *end = size ? memchr(line, '\n', size) : NULL;
    size_t n = end ? (size_t)(end - line) : 0, start = end ? n + 1 : 0;
    const pm_dialect *dialect = find_protocol(line, n);
    pm_job job = {.dialect = dialect, .ask.max_tokens = -1, .ask.n = 1};
    pm_refusal refusal = {0};
    job.body = json_loadb(line + start, size - start, 0, NULL);
    if (json_is_object(job.body)) {
        if (!pm_fields_read(dialect->fields, job.body, NULL, &job.ask, &refusal) || !dialect->read(&job, &refusal) ||
            !pm_ask_choose_tools(&job, &refusal))
            check_refusal(dialect, &refusal);
        else if (dialect->chat)
            check_chat(&job.ask);
    }
    free(job.ask.bias);
    json_decref(job.body);
    return 0;
}
