/* polymath serve: one model behind HTTP, for many at once. This header is all that the command line knows of it; of
 * polymath the server uses the public header only.
 *
 *     http.c      HTTP, on a thread of its own: connections, bodies, keys, time limits
 *     exchange.c  one request and its answer: all that the two threads share
 *     worker.c    the engine's thread: takes exchanges in, drives the scheduler, notices clients that left
 *     job.c       what a request asks of the model, from JSON to answers
 *     chat.c ...  dialects: how a protocol spells requests and answers
 *     fields.c    reading JSON objects by tables of their fields */
#ifndef PM_SERVER_H
#define PM_SERVER_H

#include "polymath.h"

/* Zero-initialised is the default of every field, but for `model`. */
typedef struct pm_serve_options {
    const char *model; /* directory of the checkpoint */
    const char *alias; /* what the model is called; NULL: the last part of its path */
    pm_engine_options engine;
    int parallel, queue;      /* as in pm_scheduler_options */
    uint64_t cache_bytes;     /* of all timelines; 0: what memory leaves, see pm_cache_budget */
    const char *cache_dir;    /* as in pm_scheduler_options */
    uint64_t disk_bytes;      /* the same */
    const char *host;         /* NULL: 127.0.0.1 */
    int port;                 /* 0: one that is free */
    const char *api_key_file; /* a key a line; NULL: everybody may ask */
    bool no_auth;             /* without keys, answer on other addresses than those of this machine too */
    const char *cors;         /* an origin (scheme://host, a port) whose pages may ask, or "*"; NULL: none */
    size_t max_body;          /* bytes of a request, at most; 0: 8 MiB */
    double timeout;           /* seconds in which a client must send a request or take some of the answer; 0: 60 */
    const char *log_file;     /* NULL: stderr */
    bool log_json;
} pm_serve_options;

/* Serves until SIGTERM or SIGINT: prints "listening on http://HOST:PORT" when the model is loaded and answers (before
 * that, with 503). Then takes no more requests, ends
 * those that are being answered, for a while, and returns PM_OK; otherwise says in `err` why it cannot serve. */
int pm_serve(const pm_serve_options *options, pm_error *err);

#endif
