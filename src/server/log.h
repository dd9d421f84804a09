/* The log: one line for each request, which says nothing of what was asked or answered. */
#ifndef PM_SERVER_LOG_H
#define PM_SERVER_LOG_H

#include "exchange.h"

typedef struct pm_log {
    const char *path; /* NULL: stderr */
    bool json;
    pthread_mutex_t lock; /* guards what follows */
    int fd;
    bool torn;         /* the last line was cut off by a full disk */
    uint64_t lost;     /* lines that could not be written, in all */
    uint64_t reported; /* of these, those of which the log says so */
} pm_log;

int pm_log_open(pm_log *log, const char *path, bool json, pm_error *err);
void pm_log_close(pm_log *log);

/* Opens the file again, for those who have moved it away; what cannot be opened leaves the old one in use. */
void pm_log_reopen(pm_log *log);

/* The line of a request that has ended; 499 when the client left before its answer was complete. */
void pm_log_request(pm_log *log, const pm_exchange *exchange, int status);

/* How many lines could not be written: nobody waits for a pipe that nobody reads, or for a full disk. */
uint64_t pm_log_lost(pm_log *log);

/* A line about the server itself. */
void pm_log_say(pm_log *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
