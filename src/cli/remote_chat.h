/* A conversation with a server. */
#ifndef PM_REMOTE_CHAT_H
#define PM_REMOTE_CHAT_H

#include "chat.h"
#include "remote.h"

/* Asks the server for an answer to the messages, shows it as it comes, and appends it; an exit code. Ctrl-C closes the
 * connection, which ends the answer there. */
int pm_remote_turn(pm_conversation *chat);

#endif
