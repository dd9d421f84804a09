/* Answers held to a schema, or to calls of tools. Making a constraint takes a while and it learns while it is used, so
 * that the last ones are kept. */
#include "constrain.h"

#include "ask.h"
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what requests say ---- */

/* Takes the function that a forced call is of. */
static bool name_function(pm_ask *ask, const char *name, const json_t *function, pm_refusal *refusal)
{
    if (!json_is_string(function))
        return pm_refuse(refusal, 400, "invalid_value", name, "'%s' names no function", name);
    ask->tool_use = PM_TOOLS_REQUIRED;
    ask->function = json_string_value(function);
    return true;
}

bool pm_read_tool_choice(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    static const char *const words[] = {
        [PM_TOOLS_AUTO] = "auto", [PM_TOOLS_NONE] = "none", [PM_TOOLS_REQUIRED] = "required"};
    pm_ask *ask = target;
    const char *word = json_string_value(value), *type = json_string_value(json_object_get(value, "type"));
    for (size_t i = 0; word && i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(word, words[i]) == 0) {
            ask->tool_use = (pm_tool_use)i;
            return true;
        }
    }
    if (type && strcmp(type, "function") == 0) {
        const json_t *function = json_object_get(value, "function");
        return name_function(ask, name, json_object_get(function ? function : value, "name"), refusal);
    }
    return pm_refuse(refusal, 400, "unsupported_value", name,
                     "'%s' must be \"none\", \"auto\", \"required\" or the name of a function", name);
}

bool pm_read_anthropic_choice(pm_ask *ask, const char *name, const json_t *value, pm_refusal *refusal)
{
    static const char *const words[] = {
        [PM_TOOLS_AUTO] = "auto", [PM_TOOLS_NONE] = "none", [PM_TOOLS_REQUIRED] = "any"};
    const char *type = json_string_value(json_object_get(value, "type"));
    for (size_t i = 0; type && i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(type, words[i]) == 0) {
            ask->tool_use = (pm_tool_use)i;
            return true;
        }
    }
    if (type && strcmp(type, "tool") == 0)
        return name_function(ask, name, json_object_get(value, "name"), refusal);
    return pm_refuse(refusal, 400, "invalid_value", name, "'%s' must have the type auto, any, tool or none", name);
}

bool pm_read_response_format(void *target, const char *name, json_t *value, pm_refusal *refusal)
{
    pm_ask *ask = target;
    const char *type = json_string_value(json_object_get(value, "type"));
    if (type && strcmp(type, "text") == 0)
        return true;
    if (type && strcmp(type, "json_object") == 0) {
        ask->json_object = true;
        return true;
    }
    if (!type || strcmp(type, "json_schema") != 0)
        return pm_refuse(refusal, 400, "unsupported_value", name,
                         "'%s' must have the type text, json_object or json_schema", name);
    const json_t *inner = json_object_get(value, "json_schema");
    ask->schema = json_object_get(inner ? inner : value, "schema");
    if (!json_is_object(ask->schema))
        return pm_refuse(refusal, 400, "invalid_type", name, "'%s' has no schema, or one that is no object", name);
    return true;
}

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

bool pm_job_constrain(pm_job *job, pm_refusal *refusal)
{
    const pm_ask *ask = &job->ask;
    bool required = ask->tool_use == PM_TOOLS_REQUIRED, format = ask->schema || ask->json_object;
    const char *blamed = required ? "tool_choice" : "response_format";
    pm_error err;
    if (required && !job->tools)
        return pm_refuse(refusal, 400, "invalid_value", blamed,
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
        pm_refuse_status(refusal, err.code, &err);
        if (refusal->status == 400)
            snprintf(refusal->param, sizeof(refusal->param), "%s", blamed);
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
