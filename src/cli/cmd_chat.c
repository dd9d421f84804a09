/* polymath chat: a conversation, with line editing when stdin is a terminal. A message is a line, or several of which
 * all but the last end in a backslash. */
#include "chat.h"
#include "remote_chat.h"

#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

/* Where messages come from. */
struct reader {
    EditLine *edit;   /* NULL: stdin is no terminal */
    History *history; /* of this conversation */
    char *line;       /* getline's */
    size_t cap;
    size_t lines;  /* read so far */
    char *message; /* the lines of a message that goes on, joined */
    size_t joined; /* its length so far; 0: there is none */
    bool no_memory;
};

static char *edit_prompt(EditLine *edit)
{
    static char first[] = "> ", next[] = ". ";
    struct reader *reader = NULL;
    el_get(edit, EL_CLIENTDATA, &reader);
    return reader && reader->joined ? next : first;
}

/* Ctrl-C is a key while a line is edited: a signal would be lost when it came between the prompt and the read that
 * waits for a key. It is bound to what makes a line of its own character. */
static const char drop_key[] = "^C", drop_keys[] = "^U^V^C^J", dropped_line[] = "\003\n";

static void begin_editing(EditLine *edit)
{
    struct termios terminal;
    el_set(edit, EL_PREP_TERM, 1); /* before the prompt shows, so that a quick Ctrl-D is not lost */
    if (tcgetattr(STDIN_FILENO, &terminal) == 0) {
        terminal.c_cc[VINTR] = _POSIX_VDISABLE;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &terminal);
    }
}

static int reader_open(struct reader *reader)
{
    *reader = (struct reader){0};
    if (!isatty(STDIN_FILENO))
        return PM_EXIT_OK;
    reader->edit = el_init("polymath", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    reader->history = history_init();
    if (!reader->edit || !reader->history)
        return pm_cli_fail("cannot set up line editing");
    pm_interrupt_end(true);
    HistEvent event;
    history(reader->history, &event, H_SETSIZE, 1000);
    history(reader->history, &event, H_SETUNIQUE, 1);
    el_set(reader->edit, EL_CLIENTDATA, reader);
    el_set(reader->edit, EL_PROMPT, edit_prompt);
    el_set(reader->edit, EL_EDITOR, "emacs");
    el_set(reader->edit, EL_SIGNAL, 1);
    el_set(reader->edit, EL_HIST, history, reader->history);
    el_set(reader->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(reader->edit, EL_BIND, "-s", drop_key, drop_keys, NULL);
    return PM_EXIT_OK;
}

static void reader_close(struct reader *reader)
{
    if (reader->edit)
        el_end(reader->edit);
    if (reader->history)
        history_end(reader->history);
    free(reader->line);
    free(reader->message);
}

/* The next line without its end, valid until the next call; false at the end of input. */
static bool next_line(struct reader *reader, const char **line, size_t *len)
{
    if (reader->edit) {
        int count = 0;
        bool dropped;
        do {
            begin_editing(reader->edit);
            errno = 0;
            *line = el_gets(reader->edit, &count);
            dropped = *line ? strcmp(*line, dropped_line) == 0 : errno == EINTR; /* or by a signal of somebody else */
            if (dropped)
                reader->joined = 0;
            if (dropped && !*line)
                fputc('\n', stderr);
        } while (dropped);
        if (!*line || count <= 0)
            return false;
        *len = (size_t)count;
    } else {
        ssize_t count = getline(&reader->line, &reader->cap, stdin);
        if (count < 0)
            return false;
        *line = reader->line;
        *len = (size_t)count;
    }
    if (reader->edit && **line != '\n') {
        HistEvent event;
        history(reader->history, &event, H_ENTER, *line);
    }
    while (*len > 0 && ((*line)[*len - 1] == '\n' || (*line)[*len - 1] == '\r'))
        --*len;
    reader->lines++;
    return true;
}

/* Adds to the message, which stays terminated. */
static bool join(struct reader *reader, const char *text, size_t len)
{
    char *longer = realloc(reader->message, reader->joined + len + 1);
    if (!longer)
        return false;
    memcpy(longer + reader->joined, text, len);
    reader->message = longer;
    reader->joined += len;
    longer[reader->joined] = '\0';
    return true;
}

/* The next message, valid until the next call; *number is that of its first line. False at the end of input, and with
 * no_memory set when it found none. */
static bool next_message(struct reader *reader, const char **text, size_t *len, size_t *number)
{
    reader->joined = 0;
    while (next_line(reader, text, len)) {
        bool goes_on = *len > 0 && (*text)[*len - 1] == '\\';
        if (reader->joined == 0)
            *number = reader->lines;
        if (reader->joined == 0 && !goes_on)
            return true;
        reader->no_memory = !join(reader, *text, *len - goes_on) || (goes_on && !join(reader, "\n", 1));
        if (reader->no_memory)
            return false;
        if (!goes_on)
            break;
    }
    *text = reader->message;
    *len = reader->joined;
    return reader->joined > 0;
}

/* Answers the last of the messages and appends the answer; an exit code. The whole conversation is given each time: the
 * session computes only what is new. */
static int take_turn(pm_conversation *chat)
{
    pm_error err;
    pm_prompt prompt = {0};
    pm_result result = {0};
    json_t *message;
    int64_t seed;
    int code = PM_EXIT_OK;
    char *text = json_dumps(chat->messages, JSON_COMPACT), *variables = NULL;
    code = text ? pm_variable_text(chat->args, &variables) : pm_cli_fail("out of memory");
    pm_chat request = {.messages = text, .tools = chat->tools, .variables = variables};
    if (code == PM_EXIT_OK && pm_chat_prompt(chat->opened.engine, &request, &prompt, &err) != PM_OK)
        code = pm_cli_fail("%s", err.message);
    if (code == PM_EXIT_OK)
        code = pm_answer(&chat->opened, chat->args, &prompt, true, &result, &seed);
    for (char *nul; code == PM_EXIT_OK && (nul = memchr(result.text, '\0', result.len));)
        *nul = '?'; /* no template takes it as part of a message */
    if (code == PM_EXIT_OK)
        code = pm_answer_message(&chat->opened, &prompt, &result, &message);
    if (code == PM_EXIT_OK && json_array_append_new(chat->messages, message) != 0)
        code = pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK) {
        chat->turns++;
        chat->read.reused += result.prompt.reused;
        chat->read.computed += result.prompt.computed;
        chat->said += result.n;
        chat->seconds += result.decode_seconds;
    }
    pm_result_free(&result);
    pm_prompt_free(&prompt);
    free(variables);
    free(text);
    return code;
}

/* Takes a message of the user and answers it. When that fails the message is taken back. */
static int take_message(pm_conversation *chat, const char *line, size_t len)
{
    size_t before = json_array_size(chat->messages);
    int code = PM_EXIT_OK;
    if (!pm_add_message(chat->messages, "user", line, len))
        code = pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK)
        code = chat->remote ? pm_remote_turn(chat) : take_turn(chat);
    while (code != PM_EXIT_OK && json_array_size(chat->messages) > before)
        json_array_remove(chat->messages, before);
    return code;
}

/* Reads and answers until the input ends. On a terminal a turn that failed is taken back and the conversation goes on;
 * otherwise it ends there. A command that failed never ends it, but without a terminal shows in the exit code. */
static int converse(pm_conversation *chat, struct reader *reader)
{
    const char *line;
    size_t len;
    int failed = PM_EXIT_OK;
    char name[32] = "the message";
    size_t number = 0;
    while (!chat->over && next_message(reader, &line, &len, &number)) {
        if (strspn(line, " \t\r\n") >= len)
            continue;
        if (!reader->edit)
            snprintf(name, sizeof(name), "line %zu", number);
        int code = pm_check_message(name, line, len);
        bool slash = line[0] == '/', escaped = slash && len > 1 && line[1] == '/';
        if (code == PM_EXIT_OK && slash && !escaped) {
            code = pm_chat_command(chat, line, len);
            failed = code != PM_EXIT_OK ? code : failed;
            continue;
        }
        if (code == PM_EXIT_OK)
            code = take_message(chat, line + escaped, len - escaped);
        if (code != PM_EXIT_OK && !reader->edit)
            return code;
    }
    if (reader->no_memory)
        return pm_cli_fail("out of memory");
    if (reader->edit && !chat->over)
        fputc('\n', stderr); /* after Ctrl-D */
    if (ferror(stdin))
        return pm_cli_fail("stdin: cannot be read: %s", strerror(errno));
    return reader->edit ? PM_EXIT_OK : failed;
}

/* Opens the model, or the connection to a server; an exit code. */
static int open_chat(pm_conversation *chat, pm_remote *remote)
{
    const pm_args *args = chat->args;
    if (!args->value[PM_OPT_URL].given)
        return pm_open(&chat->opened, args->n_words > 0 ? args->words[0] : NULL, args);
    int code = pm_remote_open(remote, args);
    if (code != PM_EXIT_OK)
        return code;
    chat->remote = remote;
    chat->opened.dir = remote->model;
    if (args->value[PM_OPT_VERBOSE].given)
        fprintf(stderr, "model: %s at %s\n", remote->model, remote->base);
    return PM_EXIT_OK;
}

/* Holds the conversation; an exit code. */
static int hold(pm_conversation *chat)
{
    struct reader reader;
    int code = reader_open(&reader);
    if (code == PM_EXIT_OK && reader.edit && pm_on_terminal())
        fprintf(stderr, "[%s: /help lists commands, Ctrl-D ends]\n", chat->opened.dir);
    if (code == PM_EXIT_OK)
        code = converse(chat, &reader);
    reader_close(&reader);
    return code;
}

int pm_cmd_chat(const pm_args *args)
{
    const char *system = args->value[PM_OPT_SYSTEM].text;
    if (system && pm_check_utf8("--system", system, strlen(system)) != PM_EXIT_OK)
        return PM_EXIT_FAILED;
    pm_conversation chat = {.args = args};
    pm_remote remote;
    int code = open_chat(&chat, &remote);
    if (code != PM_EXIT_OK)
        return code;
    code = pm_tools_text(args, &chat.tools);
    chat.messages = json_array();
    if (!chat.messages || (system && !pm_add_message(chat.messages, "system", system, strlen(system))))
        code = pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK && !chat.remote)
        pm_check_tools_used(chat.opened.engine, chat.tools);
    if (code == PM_EXIT_OK)
        code = hold(&chat);
    json_decref(chat.messages);
    free(chat.tools);
    if (chat.remote)
        pm_remote_close(chat.remote);
    else
        pm_close(&chat.opened);
    return code;
}
