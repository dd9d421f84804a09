/* HTTP, on a thread of libmicrohttpd's. */
#ifndef PM_SERVER_HTTP_H
#define PM_SERVER_HTTP_H

#include "state.h"

/* Makes server->listener and server->listening out of the options, or out of the socket that systemd hands over. */
int pm_listen(pm_server *server, pm_error *err);

/* Reads the keys of options.api_key_file. */
int pm_keys_read(pm_server *server, pm_error *err);
void pm_keys_free(pm_server *server);

/* Whether a header such as "Bearer KEY" or KEY itself is one of the keys; NULL is not. */
bool pm_keys_match(const pm_server *server, const char *header);

/* Starts and stops answering. Before stopping, all exchanges must have been answered or refused. */
int pm_http_start(pm_server *server, pm_error *err);
void pm_http_stop(pm_server *server);

/* Takes no more connections. */
void pm_http_quiesce(pm_server *server);

/* It is the client's turn, to take some of the answer; for exchange.c, while the connection is suspended. */
void pm_http_turn(pm_exchange *exchange);

/* Closes connections that have taken too long to send a request, or whose client left while it was sending one; called
 * every second. */
void pm_http_guard(pm_server *server);

#endif
