/* The reading thread, which makes tokens of what clients send: that may take longer than a step, and is done with an
 * engine that is only looked at. And the engine's thread, which alone uses the model. */
#ifndef PM_WORKER_H
#define PM_WORKER_H

#include "state.h"

/* Starts the engine's thread, which loads the model and then the other. False without memory or threads. */
bool pm_worker_start(pm_server *server);

/* Hands over an exchange (with a reference) whose route's `work` is called on the reading thread. */
void pm_worker_take(pm_server *server, pm_exchange *exchange);

/* Tells HTTP's thread how things are: between steps, or while one ends a request (on the engine's thread). */
void pm_worker_publish(pm_server *server);

/* Ends the threads: requests that are being answered have until `deadline` (pm_clock), then they are refused. */
void pm_worker_stop(pm_server *server, double deadline);
void pm_worker_join(pm_server *server);

#endif
