/* polymath chat: a conversation, with line editing when stdin is a terminal, one message a line when it is not. */
#include "cli.h"

#include <errno.h>
#include <histedit.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where lines come from. */
struct reader {
    EditLine *edit;   /* NULL: stdin is no terminal */
    History *history; /* of this conversation */
    char *line;       /* getline's */
    size_t cap;
};

static char *edit_prompt(EditLine *edit)
{
    (void)edit;
    static char text[] = "> ";
    return text;
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
    el_set(reader->edit, EL_PROMPT, edit_prompt);
    el_set(reader->edit, EL_EDITOR, "emacs");
    el_set(reader->edit, EL_SIGNAL, 1);
    el_set(reader->edit, EL_HIST, history, reader->history);
    el_set(reader->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return PM_EXIT_OK;
}

static void reader_close(struct reader *reader)
{
    if (reader->edit)
        el_end(reader->edit);
    if (reader->history)
        history_end(reader->history);
    free(reader->line);
}

/* The next line without its end, valid until the next call; false at the end of input. */
static bool reader_next(struct reader *reader, const char **line, size_t *len)
{
    if (reader->edit) {
        int count = 0;
        do {
            el_set(reader->edit, EL_PREP_TERM, 1); /* before the prompt shows, so that a quick Ctrl-D is not lost */
            errno = 0;
            *line = el_gets(reader->edit, &count);
            if (!*line && errno == EINTR)
                fputc('\n', stderr);
        } while (!*line && errno == EINTR); /* Ctrl-C drops the line */
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
    return true;
}

static bool append_message(json_t *messages, const char *role, const char *text, size_t len)
{
    return json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", role, "content", text, len)) == 0;
}

/* Answers the last of `messages` and appends the answer; an exit code. The whole conversation is given each time: the
 * session computes only what is new. */
static int take_turn(pm_opened *opened, const pm_args *args, json_t *messages)
{
    pm_error err;
    pm_prompt prompt = {0};
    pm_result result = {0};
    int64_t seed;
    int code = PM_EXIT_OK;
    char *text = json_dumps(messages, JSON_COMPACT);
    if (!text)
        return pm_cli_fail("out of memory");
    pm_chat chat = {.messages = text,
                    .variables = args->value[PM_OPT_NO_THINK].given ? "{\"enable_thinking\":false}" : NULL};
    if (pm_chat_prompt(opened->engine, &chat, &prompt, &err) != PM_OK)
        code = pm_cli_fail("%s", err.message);
    if (code == PM_EXIT_OK)
        code = pm_answer(opened, args, &prompt, true, &result, &seed);
    if (code == PM_EXIT_OK && !append_message(messages, "assistant", result.text, result.len))
        code = pm_cli_fail("out of memory");
    pm_result_free(&result);
    pm_prompt_free(&prompt);
    free(text);
    return code;
}

/* Reads and answers until the input ends. On a terminal a turn that failed is taken back and the conversation goes on;
 * otherwise it ends there. */
static int converse(pm_opened *opened, const pm_args *args, struct reader *reader, json_t *messages)
{
    const char *line;
    size_t len;
    while (reader_next(reader, &line, &len)) {
        if (len == 0)
            continue;
        size_t before = json_array_size(messages);
        int code = pm_check_utf8("the message", line, len);
        if (code == PM_EXIT_OK && !append_message(messages, "user", line, len))
            code = pm_cli_fail("out of memory");
        if (code == PM_EXIT_OK)
            code = take_turn(opened, args, messages);
        if (code == PM_EXIT_OK)
            continue;
        if (!reader->edit)
            return code;
        while (json_array_size(messages) > before)
            json_array_remove(messages, before);
    }
    if (reader->edit)
        fputc('\n', stderr);
    return ferror(stdin) ? pm_cli_fail("stdin: cannot be read: %s", strerror(errno)) : PM_EXIT_OK;
}

int pm_cmd_chat(const pm_args *args)
{
    const char *system = args->value[PM_OPT_SYSTEM].text;
    if (system && pm_check_utf8("--system", system, strlen(system)) != PM_EXIT_OK)
        return PM_EXIT_FAILED;
    pm_opened opened;
    int code = pm_open(&opened, args->n_words > 0 ? args->words[0] : NULL, args);
    if (code != PM_EXIT_OK)
        return code;
    struct reader reader;
    json_t *messages = json_array();
    if (!messages || (system && !append_message(messages, "system", system, strlen(system))))
        code = pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK) {
        code = reader_open(&reader);
        if (code == PM_EXIT_OK)
            code = converse(&opened, args, &reader, messages);
        reader_close(&reader);
    }
    json_decref(messages);
    pm_close(&opened);
    return code;
}
