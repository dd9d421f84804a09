/* The commands of a chat: /help, /reset, /save, /load, /system, /stats, /quit.
 *
 * A saved chat is one file: a saved session (pm_session_save) whose note is the object {"messages": [...]}. */
#include "chat.h"
#include "remote.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool pm_add_message(json_t *messages, const char *role, const char *text, size_t len)
{
    return json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", role, "content", text, len)) == 0;
}

static bool has_system(const json_t *messages)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    return role && strcmp(role, "system") == 0;
}

bool pm_set_system(json_t *messages, const char *text, size_t len)
{
    json_t *message = len ? json_pack("{s:s, s:s%}", "role", "system", "content", text, len) : NULL;
    if (len && !message)
        return false;
    if (has_system(messages))
        json_array_remove(messages, 0);
    return !message || json_array_insert_new(messages, 0, message) == 0;
}

/* Tells what a command did, where somebody is looking. */
static void confirm(const char *text)
{
    if (isatty(STDIN_FILENO))
        fprintf(stderr, "[%s]\n", text);
}

/* The same, with how long the conversation is. */
static void confirm_length(const pm_conversation *chat, const char *what)
{
    char text[128];
    size_t messages = json_array_size(chat->messages), tokens = pm_session_tokens(chat->opened.session, NULL);
    snprintf(text, sizeof(text), "%s: %zu message%s, %zu tokens", what, messages, messages == 1 ? "" : "s", tokens);
    confirm(text);
}

/* The timeline goes too: what is saved afterwards has nothing of what was forgotten. */
static int reset(pm_conversation *chat, const char *argument, size_t len)
{
    (void)argument, (void)len;
    pm_session *session = NULL;
    pm_error err;
    if (!chat->remote && pm_session_new(&session, chat->opened.engine, &err) != PM_OK)
        return pm_cli_fail("%s", err.message);
    pm_session_free(chat->opened.session);
    chat->opened.session = session;
    size_t keep = has_system(chat->messages);
    while (json_array_size(chat->messages) > keep)
        json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    confirm(keep ? "a new conversation, with the same system message" : "a new conversation");
    return PM_EXIT_OK;
}

static int set_system(pm_conversation *chat, const char *argument, size_t len)
{
    if (!pm_set_system(chat->messages, argument, len))
        return pm_cli_fail("out of memory");
    confirm(len ? "the system message is set" : "no system message");
    return PM_EXIT_OK;
}

/* Saves with signals that end the process put off, so that it leaves nothing half-written beside the file. */
static int save_session(const pm_session *session, const char *path, const char *note, pm_error *err)
{
    sigset_t ending, before;
    sigemptyset(&ending);
    sigaddset(&ending, SIGHUP);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    sigprocmask(SIG_BLOCK, &ending, &before);
    int status = pm_session_save(session, path, note, strlen(note), err);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

static int save(pm_conversation *chat, const char *path, size_t len)
{
    (void)len;
    pm_error err;
    json_t *note = json_pack("{s:O}", "messages", chat->messages);
    char *text = note ? json_dumps(note, JSON_COMPACT) : NULL;
    json_decref(note);
    if (!text)
        return pm_cli_fail("out of memory");
    int status = save_session(chat->opened.session, path, text, &err);
    free(text);
    if (status != PM_OK)
        return pm_cli_fail("%s", err.message);
    confirm_length(chat, "saved");
    return PM_EXIT_OK;
}

/* The messages of a saved chat's note, or NULL when that is something else. */
static json_t *parse_note(const char *note, size_t len)
{
    json_t *root = json_loadb(note, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    json_t *messages = json_object_get(root, "messages"), *message;
    size_t i;
    bool good = json_is_array(messages);
    json_array_foreach(messages, i, message) good =
        good && json_is_string(json_object_get(message, "role")) && json_is_string(json_object_get(message, "content"));
    json_incref(good ? messages : NULL);
    json_decref(root);
    return good ? messages : NULL;
}

static int load(pm_conversation *chat, const char *path, size_t path_len)
{
    (void)path_len;
    pm_session *session;
    char *note;
    size_t len;
    pm_error err;
    if (pm_session_load(&session, chat->opened.engine, path, &note, &len, &err) != PM_OK)
        return pm_cli_fail("%s", err.message);
    json_t *messages = parse_note(note, len);
    pm_free(note);
    if (!messages) {
        pm_session_free(session);
        return pm_cli_fail("%s: is a saved session, but not of a chat", path);
    }
    pm_session_free(chat->opened.session);
    json_decref(chat->messages);
    chat->opened.session = session;
    chat->messages = messages;
    confirm_length(chat, "loaded");
    return PM_EXIT_OK;
}

static int stats(pm_conversation *chat, const char *argument, size_t len)
{
    (void)argument, (void)len;
    fprintf(stderr, "messages      %zu\n", json_array_size(chat->messages));
    if (chat->remote) {
        fprintf(stderr, "server        %s, %s\n", chat->remote->base, chat->remote->model);
    } else {
        pm_info info;
        pm_engine_info(chat->opened.engine, &info);
        size_t tokens = pm_session_tokens(chat->opened.session, NULL);
        fprintf(stderr, "context       %zu of %d tokens\n", tokens, info.ctx);
    }
    fprintf(stderr, "answers       %zu with %zu tokens", chat->turns, chat->said);
    if (chat->seconds > 0 && chat->said > chat->turns)
        fprintf(stderr, ", %.0f tokens/s", (double)(chat->said - chat->turns) / chat->seconds);
    fprintf(stderr, "\nprompts       %zu tokens computed, %zu reused\n", chat->read.computed, chat->read.reused);
    return PM_EXIT_OK;
}

static int quit(pm_conversation *chat, const char *argument, size_t len)
{
    (void)argument, (void)len;
    chat->over = true;
    return PM_EXIT_OK;
}

static int help(pm_conversation *chat, const char *argument, size_t len);

static const struct chat_command {
    const char *name, *argument; /* NULL: none; in brackets: may be left out */
    const char *help;
    int (*run)(pm_conversation *chat, const char *argument, size_t len);
    bool session; /* works with what the model remembers, so that a server cannot answer it */
} chat_commands[] = {
    {"/help", NULL, "this list; a message that begins with / is written with //", help, false},
    {"/reset", NULL, "forget the conversation, keep the system message", reset, false},
    {"/save", "FILE", "save the conversation with all that the model remembers of it", save, true},
    {"/load", "FILE", "go on with a saved conversation in place of this one", load, true},
    {"/system", "[TEXT]", "set the system message, or remove it", set_system, false},
    {"/stats", NULL, "tokens and speed so far", stats, false},
    {"/quit", NULL, "end the conversation, as Ctrl-D does", quit, false},
};

enum { CHAT_COMMANDS = sizeof(chat_commands) / sizeof(*chat_commands) };

static int help(pm_conversation *chat, const char *argument, size_t len)
{
    (void)chat, (void)argument, (void)len;
    for (int i = 0; i < CHAT_COMMANDS; i++) {
        char left[32];
        snprintf(left, sizeof(left), "%s %s", chat_commands[i].name,
                 chat_commands[i].argument ? chat_commands[i].argument : "");
        fprintf(stderr, "%-15s %s\n", left, chat_commands[i].help);
    }
    return PM_EXIT_OK;
}

/* Finds the command and checks its argument; an exit code. */
static int dispatch(pm_conversation *chat, char *line)
{
    size_t name = strcspn(line, " \t");
    char *argument = line + name + strspn(line + name, " \t");
    size_t len = strlen(argument);
    while (len > 0 && strchr(" \t", argument[len - 1]))
        argument[--len] = '\0';
    for (int i = 0; i < CHAT_COMMANDS; i++) {
        const struct chat_command *command = &chat_commands[i];
        if (strlen(command->name) != name || memcmp(command->name, line, name) != 0)
            continue;
        if (command->session && chat->remote)
            return pm_cli_fail("%s needs the model itself: what it remembers is with the server", command->name);
        if (!command->argument && len)
            return pm_cli_fail("%s takes nothing after it", command->name);
        if (command->argument && *command->argument != '[' && !len)
            return pm_cli_fail("%s needs a %s", command->name, command->argument);
        return command->run(chat, argument, len);
    }
    return pm_cli_fail("there is no %.*s; /help lists the commands, and // begins a message with /", (int)name, line);
}

int pm_chat_command(pm_conversation *conversation, const char *line, size_t len)
{
    if (memchr(line, '\0', len))
        return pm_cli_fail("a command has no NUL bytes");
    char *copy = strndup(line, len);
    if (!copy)
        return pm_cli_fail("out of memory");
    int code = dispatch(conversation, copy);
    free(copy);
    return code;
}
