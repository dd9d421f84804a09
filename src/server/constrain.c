/* Answers held to a schema, or to calls of tools. Making a constraint takes a while and it learns while it is used, so
 * that the last ones are kept. */
#include "constrain.h"

#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- constraints that are kept ---- */

typedef struct pm_kept_constraint {
    char *key;
    pm_constraint *constraint;
    int users;
    uint64_t used; /* when that was last asked for */
} pm_kept_constraint;

static void forget(pm_kept_constraint *kept)
{
    free(kept->key);
    pm_constraint_free(kept->constraint);
    *kept = (pm_kept_constraint){0};
}

/* What tells one constraint from another; NULL without memory. */
static char *key_of(const pm_constraint_options *options)
{
    pm_str key = {0};
    const char *const texts[] = {options->schema, options->tools, options->function};
    pm_str_print(&key, "%d %d", options->json_object, options->parallel);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        pm_str_add(&key, "\x1f", 1); /* which no JSON text has */
        pm_str_text(&key, texts[i] ? texts[i] : "\x1f");
    }
    if (!key.failed)
        return key.data;
    pm_str_free(&key);
    return NULL;
}

/* A constraint of these options, kept or new. NULL with an error. */
static pm_kept_constraint *obtain(pm_server *server, const pm_constraint_options *options, pm_error *err)
{
    pm_kept_constraint *oldest = NULL;
    char *key = key_of(options);
    if (!key) {
        *err = (pm_error){PM_ERR_MEMORY, "out of memory"};
        return NULL;
    }
    if (!server->constraints)
        server->constraints = calloc(PM_CONSTRAINTS_KEPT, sizeof(*server->constraints));
    for (size_t i = 0; server->constraints && i < PM_CONSTRAINTS_KEPT; i++) {
        pm_kept_constraint *kept = &server->constraints[i];
        if (kept->key && strcmp(kept->key, key) == 0) {
            free(key);
            kept->used = ++server->constraint_clock;
            kept->users++;
            return kept;
        }
        if (!kept->users && (!oldest || kept->used < oldest->used))
            oldest = kept;
    }
    pm_constraint *made = NULL;
    if (!oldest)
        *err = (pm_error){PM_ERR_BUSY, "too many schemas are in use"};
    if (!oldest || pm_constraint_new(&made, server->engine, options, err) != PM_OK) {
        free(key);
        return NULL;
    }
    forget(oldest);
    *oldest = (pm_kept_constraint){key, made, 1, ++server->constraint_clock};
    return oldest;
}

/* Finds out whose schema an error is about: the answer's, or that of the tool that it begins with. */
static void blame(const pm_job *job, pm_refusal *refusal)
{
    static const char *const members[] = {"function.parameters", "parameters", "input_schema"};
    static const char schema[] = "schema";
    size_t i, n = sizeof(schema) - 1;
    const json_t *tool;
    if (job->ask.tool_use != PM_TOOLS_REQUIRED) {
        char text[sizeof(refusal->message)];
        bool first = strncmp(refusal->message, schema, n) == 0;
        snprintf(text, sizeof(text), "%.440s", refusal->message + (first ? n : 0));
        pm_refuse(refusal, 400, refusal->code, job->ask.schema_at, "%s%s%s", job->ask.schema_at, first ? "" : ": ",
                  text);
        return;
    }
    snprintf(refusal->param, sizeof(refusal->param), "tools");
    json_array_foreach(json_object_get(job->body, "tools"), i, tool)
    {
        const json_t *function = json_object_get(tool, "function"), *inner = function ? function : tool;
        const char *name = json_string_value(json_object_get(inner, "name"));
        char begin[128];
        snprintf(begin, sizeof(begin), "tool '%.100s'", name ? name : "");
        if (strncmp(refusal->message, begin, strlen(begin)) == 0)
            snprintf(refusal->param, sizeof(refusal->param), "tools[%zu].%s", i,
                     members[function                             ? 0
                             : json_object_get(inner, members[1]) ? 1
                                                                  : 2]);
    }
}

bool pm_job_constrain(pm_job *job, pm_refusal *refusal)
{
    const pm_ask *ask = &job->ask;
    bool required = ask->tool_use == PM_TOOLS_REQUIRED, format = ask->schema || ask->json_object;
    pm_error err;
    if (required && !job->tools)
        return pm_refuse(refusal, 400, "invalid_value", "tool_choice",
                         "'tool_choice' asks for a call, and there are no tools");
    if (!required && !format)
        return true;
    char *schema = ask->schema && !required ? json_dumps(ask->schema, JSON_COMPACT) : NULL;
    if (ask->schema && !required && !schema)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    pm_constraint_options options = {.schema = schema,
                                     .json_object = ask->json_object && !required,
                                     .tools = job->tools,
                                     .function = ask->function,
                                     .parallel = !ask->one_call};
    job->held = obtain(job->server, &options, &err);
    free(schema);
    if (!job->held) {
        pm_refuse_status(job->exchange, refusal, err.code, &err);
        if (refusal->status == 400 && !*refusal->param)
            blame(job, refusal);
        return false;
    }
    job->constraint = job->held->constraint;
    return true;
}

void pm_job_release(pm_job *job)
{
    if (job->held)
        job->held->users--;
    job->held = NULL;
}

void pm_constraints_free(pm_server *server)
{
    for (size_t i = 0; server->constraints && i < PM_CONSTRAINTS_KEPT; i++)
        forget(&server->constraints[i]);
    free(server->constraints);
    server->constraints = NULL;
}
