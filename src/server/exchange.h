/* One HTTP request and its answer: all that HTTP's thread and the engine's thread share.
 *
 * HTTP's thread reads the body into it, hands it over and suspends the connection; whoever answers writes, and every
 * writing wakes the connection. A suspended connection does not notice a client that leaves: the engine's thread looks
 * at its socket (worker.c). */
#ifndef PM_EXCHANGE_H
#define PM_EXCHANGE_H

#include "str.h"

#include "polymath.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct pm_server pm_server;
typedef struct pm_route pm_route;

/* Why a request gets no answer. Zero-initialised is none. */
typedef struct pm_refusal {
    int status;        /* HTTP; 0: not refused */
    const char *code;  /* such as "model_not_found", or NULL */
    char param[96];    /* the field that is to blame, or empty */
    char message[512]; /* one sentence */
    int retry_after;   /* seconds; 0: not said */
} pm_refusal;

/* Fills a refusal; returns false, for callers that return whether all went well. `param` and `code` may be NULL. */
bool pm_refuse(pm_refusal *refusal, int status, const char *code, const char *param, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The same with 400 for a field at a place that is put together, such as "tools[%zu].function.name": the message is the
 * place in quotes, and `why`. */
bool pm_refuse_at(pm_refusal *refusal, const char *code, const char *why, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What the log and the metrics say of a request. Counts are of all its answers. */
typedef struct pm_record {
    size_t prompt, cached, answer; /* tokens; of the prompt, found in the cache; of the answers */
    double queue, prefill, decode; /* seconds */
    const char *finish;            /* of the first answer; NULL: none */
} pm_record;

typedef struct pm_exchange {
    /* Fixed before the exchange is handed over. */
    pm_server *server;
    const pm_route *route; /* NULL: no such path */
    struct MHD_Connection *connection;
    struct pm_guest *guest; /* of the connection, see http.c */
    int fd;
    char id[40];                        /* such as "3f0c..."; of the answer too */
    char method[16];                    /* for the log */
    char path[128];                     /* as the client wrote it, cut; for the log */
    char rest[256];                     /* what follows the path of a route that is a prefix */
    char allowed[64];                   /* methods of the path, when the route is another */
    double arrived;                     /* pm_clock */
    pm_str body;                        /* the engine's thread's from then on */
    pm_refusal refusal;                 /* found before the body was there */
    bool anthropic;                     /* the client speaks Anthropic's protocol (anthropic-version) */
    bool handed;                        /* the route's handler has been called */
    const char *etag;                   /* of a file of the web page, static; NULL: the answer is none */
    void *job;                          /* the engine's thread's own, as what follows */
    double written;                     /* pm_clock when something was last written to a stream, or of the beginning */
    struct pm_exchange *next, **before; /* in the inbox, later among those that the engine's thread answers */

    atomic_int references;
    pthread_mutex_t lock; /* guards what follows */
    pm_str out;           /* written and not sent: from `sent` on */
    size_t sent;
    int status;       /* 0: the answer has not begun */
    const char *type; /* content type, static */
    int retry_after;
    bool done;      /* all of the answer is written */
    bool suspended; /* the connection waits to be woken */
    bool gone;      /* the client has left */
    bool cut;       /* the client did not take the answer, or memory ran out: the connection must be closed */
    pm_record record;
} pm_exchange;

/* An exchange with one reference, or NULL without memory. */
pm_exchange *pm_exchange_new(pm_server *server);
void pm_exchange_hold(pm_exchange *exchange);
void pm_exchange_drop(pm_exchange *exchange); /* frees it with the last reference */

/* Begins the answer: its status and content type (static strings). */
void pm_exchange_begin(pm_exchange *exchange, int status, const char *type);

/* Appends to the answer. A client that leaves too much of a stream unread is cut off. */
void pm_exchange_write(pm_exchange *exchange, const char *text, size_t len);

/* The answer is complete. */
void pm_exchange_end(pm_exchange *exchange);

/* A whole answer: a text, which is taken over. */
void pm_exchange_text(pm_exchange *exchange, int status, const char *type, pm_str *text);

/* A whole answer: a JSON value, whose reference is dropped. */
void pm_exchange_json(pm_exchange *exchange, int status, json_t *value);

/* A whole answer that says why there is none, in the envelope of the route's dialect, else of the client's. */
void pm_exchange_refuse(pm_exchange *exchange, const pm_refusal *refusal);

/* Frees the body when it has been read. */
void pm_exchange_free_body(pm_exchange *exchange);

/* The client has left, or was cut off: nothing of the answer is needed. */
bool pm_exchange_left(pm_exchange *exchange);

double pm_clock(void); /* monotonic seconds */

#endif
