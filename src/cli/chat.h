/* A conversation, and the commands that are typed into it. */
#ifndef PM_CHAT_CLI_H
#define PM_CHAT_CLI_H

#include "cli.h"

typedef struct pm_conversation {
    pm_opened opened;         /* without a session when `remote` answers */
    struct pm_remote *remote; /* NULL: `opened` does */
    const pm_args *args;
    json_t *messages;
    char *tools;        /* JSON text, or NULL when there are none */
    pm_sync_stats read; /* tokens of prompts so far */
    size_t said;        /* tokens of answers so far */
    double seconds;     /* that these took to generate */
    size_t turns;
    bool over; /* /quit */
} pm_conversation;

/* Appends a message; false when out of memory. */
bool pm_add_message(json_t *messages, const char *role, const char *text, size_t len);

/* Makes `text` the system message, or removes it when len is 0; false when out of memory. */
bool pm_set_system(json_t *messages, const char *text, size_t len);

/* Carries out a line that begins with '/'. A failure is told on stderr and changes nothing; an exit code. */
int pm_chat_command(pm_conversation *conversation, const char *line, size_t len);

#endif
