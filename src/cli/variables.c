/* Variables of the chat template, and tools, that the command line gives. */
#include "cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value as JSON, or as the text that it is when it is none. */
static json_t *value_of(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    return value ? value : json_string(text);
}

/* Sets NAME:VALUE; an exit code. */
static int set(json_t *variables, const char *setting)
{
    const char *colon = strchr(setting, ':'); /* options.c has looked */
    char *name = strndup(setting, (size_t)(colon - setting));
    int code = pm_check_utf8("--set", setting, strlen(setting));
    if (code == PM_EXIT_OK && (!name || json_object_set_new(variables, name, value_of(colon + 1)) != 0))
        code = pm_cli_fail("out of memory");
    free(name);
    return code;
}

int pm_variable_flags(const pm_args *args, json_t *variables)
{
    int code = PM_EXIT_OK;
    if (args->value[PM_OPT_NO_THINK].given && json_object_set_new(variables, "enable_thinking", json_false()) != 0)
        code = pm_cli_fail("out of memory");
    for (int i = 0; code == PM_EXIT_OK && i < args->n_set; i++)
        code = set(variables, args->set[i]);
    return code;
}

int pm_variable_text(const pm_args *args, char **out)
{
    json_t *variables = json_object();
    int code = variables ? pm_variable_flags(args, variables) : pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK && !(*out = json_dumps(variables, JSON_COMPACT)))
        code = pm_cli_fail("out of memory");
    json_decref(variables);
    return code;
}

/* Checks what was read of the file as pm_chat will, before a model is asked; an exit code. */
static int check_tools(const char *path, const json_t *tools)
{
    size_t i;
    const json_t *tool;
    if (!json_is_array(tools))
        return pm_cli_fail("%s: is not a JSON list of tools", path);
    json_array_foreach((json_t *)tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        if (json_string_length(json_object_get(function ? function : tool, "name")) == 0)
            return pm_cli_fail("%s: tools[%zu] is not a function with a name", path, i);
    }
    return PM_EXIT_OK;
}

int pm_read_tools(const char *path, json_t **out)
{
    int code = pm_read_json(path, out);
    return code == PM_EXIT_OK ? check_tools(strcmp(path, "-") == 0 ? "stdin" : path, *out) : code;
}

int pm_tools_text(const pm_args *args, char **out)
{
    *out = NULL;
    if (!args->value[PM_OPT_TOOLS].given)
        return PM_EXIT_OK;
    json_t *tools = NULL;
    int code = pm_read_tools(args->value[PM_OPT_TOOLS].text, &tools);
    if (code == PM_EXIT_OK && !(*out = json_dumps(tools, JSON_COMPACT)))
        code = pm_cli_fail("out of memory");
    json_decref(tools);
    return code;
}

void pm_say_tools_unused(const char *with, size_t n_with, const char *without, size_t n_without)
{
    if (n_with == n_without && memcmp(with, without, n_with) == 0)
        fprintf(stderr, "[the model's chat template leaves the tools out]\n");
}

void pm_check_tools_used(const pm_engine *engine, const char *tools)
{
    pm_chat chat = {.messages = "[{\"role\":\"user\",\"content\":\"x\"}]"};
    char *with = NULL, *without = NULL;
    size_t n_with, n_without;
    if (!tools || strcmp(tools, "[]") == 0 || pm_chat_text(engine, &chat, &without, &n_without, NULL) != PM_OK)
        return;
    chat.tools = tools;
    if (pm_chat_text(engine, &chat, &with, &n_with, NULL) == PM_OK)
        pm_say_tools_unused(with, n_with, without, n_without);
    pm_free(with);
    pm_free(without);
}

int pm_schema_text(const pm_args *args, char **out)
{
    const char *path = args->value[PM_OPT_SCHEMA].text;
    json_t *schema = NULL;
    *out = NULL;
    int code = path ? pm_read_json(path, &schema) : PM_EXIT_OK;
    if (code != PM_EXIT_OK || !path)
        return code;
    *out = json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(schema);
    return *out ? PM_EXIT_OK : pm_cli_fail("out of memory");
}
