/* polymath template: what the chat template makes of a conversation. */
#include "cli.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A conversation on its way to the template. */
struct conversation {
    json_t *messages, *tools, *variables; /* tools: NULL when there are none */
    bool no_generation_prompt;
};

static void conversation_free(struct conversation *conversation)
{
    json_decref(conversation->messages);
    json_decref(conversation->tools);
    json_decref(conversation->variables);
}

/* Takes a request apart: a list of messages, or an object with messages, tools and add_generation_prompt in it, the
 * rest of which are variables. An exit code. */
static int take_apart(const char *name, json_t *request, struct conversation *out)
{
    if (json_is_array(request)) {
        out->messages = json_incref(request);
        return PM_EXIT_OK;
    }
    json_t *prompt = json_object_get(request, "add_generation_prompt");
    out->messages = json_incref(json_object_get(request, "messages"));
    if (!out->messages)
        return pm_cli_fail("%s: is neither a list of messages nor an object with one called messages", name);
    if (prompt && !json_is_boolean(prompt))
        return pm_cli_fail("%s: add_generation_prompt is neither true nor false", name);
    out->no_generation_prompt = json_is_false(prompt);
    out->tools = json_incref(json_object_get(request, "tools"));
    json_object_del(request, "messages");
    json_object_del(request, "tools");
    json_object_del(request, "add_generation_prompt");
    return json_object_update(out->variables, request) == 0 ? PM_EXIT_OK : pm_cli_fail("out of memory");
}

/* Reads what the words and options of the command line name; options win over the file. An exit code. */
static int read_conversation(const pm_args *args, const char *path, struct conversation *out)
{
    json_t *request = NULL;
    const pm_value *tools = &args->value[PM_OPT_TOOLS];
    int code = (out->variables = json_object()) ? pm_read_json(path, &request) : pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK)
        code = take_apart(strcmp(path, "-") == 0 ? "stdin" : path, request, out);
    if (code == PM_EXIT_OK && tools->given) {
        json_decref(out->tools);
        out->tools = NULL;
        code = pm_read_tools(tools->text, &out->tools);
    }
    out->no_generation_prompt |= args->value[PM_OPT_NO_GENERATION_PROMPT].given;
    json_decref(request);
    return code == PM_EXIT_OK ? pm_variable_flags(args, out->variables) : code;
}

/* Writes the prompt as it is; on a terminal control tokens stand out and the last line is ended. */
static int print(const char *text, size_t len, const uint8_t *control)
{
    static const char on[] = "\033[1;36m", off[] = "\033[0m";
    bool written = true;
    for (size_t from = 0, to; written && from < len; from = to) {
        for (to = from + 1; to < len && (!control || control[to] == control[from]);)
            to++;
        bool marked = control && control[from];
        if (marked)
            fputs(on, stdout);
        written = pm_cli_write(text + from, to - from);
        if (marked)
            fputs(off, stdout);
    }
    if (control && len > 0 && text[len - 1] != '\n')
        putchar('\n');
    return written ? PM_EXIT_OK : pm_cli_fail("cannot write to stdout: %s", strerror(errno));
}

/* Renders and prints; an exit code. */
static int render(const char *dir, const struct conversation *conversation)
{
    bool terminal = isatty(STDOUT_FILENO);
    char *messages = json_dumps(conversation->messages, JSON_COMPACT | JSON_ENCODE_ANY);
    char *tools = conversation->tools ? json_dumps(conversation->tools, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    char *variables = json_dumps(conversation->variables, JSON_COMPACT), *text = NULL;
    uint8_t *control = NULL;
    size_t len = 0;
    pm_error err;
    int code = PM_EXIT_OK;
    pm_chat chat = {messages, tools, variables, conversation->no_generation_prompt};
    if (!messages || !variables || (conversation->tools && !tools))
        code = pm_cli_fail("out of memory");
    else if (pm_template_text(dir, &chat, &text, &len, terminal ? &control : NULL, &err) != PM_OK)
        code = pm_cli_fail("%s", err.message);
    if (code == PM_EXIT_OK && json_array_size(conversation->tools) > 0) {
        chat.tools = NULL;
        char *without = NULL;
        size_t n = 0;
        if (pm_template_text(dir, &chat, &without, &n, NULL, NULL) == PM_OK)
            pm_say_tools_unused(text, len, without, n);
        pm_free(without);
    }
    if (code == PM_EXIT_OK)
        code = print(text, len, control);
    pm_free(text);
    pm_free(control);
    free(messages);
    free(tools);
    free(variables);
    return code;
}

int pm_cmd_template(const pm_args *args)
{
    if (args->n_words == 0)
        return pm_cli_usage("a FILE is missing: a conversation as JSON");
    char bundled[4096];
    const char *dir;
    struct conversation conversation = {0};
    int code = pm_find_model(args->n_words > 1 ? args->words[0] : NULL, bundled, sizeof(bundled), &dir);
    if (code == PM_EXIT_OK)
        code = read_conversation(args, args->words[args->n_words - 1], &conversation);
    if (code == PM_EXIT_OK)
        code = render(dir, &conversation);
    conversation_free(&conversation);
    return code;
}
