/* What the parts of a running server share. */
#ifndef PM_SERVER_STATE_H
#define PM_SERVER_STATE_H

#include "exchange.h"
#include "log.h"
#include "server.h"

/* How far the model is. */
typedef enum pm_stage { PM_LOADING, PM_READY, PM_DRAINING, PM_FAILED } pm_stage;

/* What the engine's thread tells HTTP's, after every step. */
typedef struct pm_gauges {
    pm_scheduler_info scheduler;
    pm_info model;
} pm_gauges;

/* Sums over all requests that have ended; HTTP's thread's own. */
typedef struct pm_counters {
    uint64_t requests[6]; /* by the first digit of the status; 499 apart, in [0] */
    uint64_t prompt, cached, answer;
    double queue, prefill, decode, total;
    uint64_t answered; /* requests that the model has answered */
} pm_counters;

struct pm_server {
    pm_serve_options options; /* without defaults */
    char name[256];           /* of the model */
    int64_t started;          /* Unix time */
    char **keys;              /* [n_keys] */
    size_t n_keys;
    char listening[256]; /* the address, as a URL */
    int listener;        /* socket */
    bool local;          /* it is of this machine only */
    struct MHD_Daemon *daemon;
    struct pm_guest *guests; /* connections, see http.c */
    pthread_mutex_t guests_lock;
    pm_log log;
    pm_counters counters;
    atomic_int open;      /* exchanges that have not been answered to the end */
    atomic_size_t bodies; /* bytes of all bodies that are held */
    int wake_main;        /* eventfd: the model is loaded, or cannot be */

    atomic_int stage;     /* pm_stage */
    pthread_mutex_t lock; /* guards what follows */
    pm_gauges gauges;
    pm_exchange *inbox, **inbox_end; /* to be read; then, with a job each: */
    pm_exchange *ready, **ready_end;
    size_t reading;      /* exchanges in the inbox, and the one that is being read */
    bool read_no_more;   /* the reading thread is to end */
    pthread_cond_t came; /* the inbox or `read_no_more` has changed */
    bool stop;
    double deadline;
    int wake; /* eventfd: `ready`, `reading` or `stop` has changed */

    /* The engine's thread's own, but for `failure` after PM_FAILED. */
    pthread_t thread;
    pthread_t reader; /* while the model is there */
    pm_engine *engine;
    pm_scheduler *scheduler;
    bool no_tools;                          /* the chat template has no place for them */
    struct pm_kept_constraint *constraints; /* see constrain.c */
    uint64_t constraint_clock;
    pm_exchange *answering; /* exchanges that have a job */
    pm_error failure;
};

/* A path of the API. */
struct pm_route {
    const char *method, *path;
    bool prefix;                           /* what follows the path is exchange->rest */
    bool open;                             /* needs no key */
    void (*answer)(pm_exchange *exchange); /* on HTTP's thread, at once; or */
    void (*work)(pm_exchange *exchange);   /* on the reading thread; a job goes on to the engine's */
    const struct pm_dialect *dialect;      /* spells errors, and what pm_job_start answers; NULL: OpenAI's errors */
};

/* ---- routes.c ---- */

/* The route of a method and path. NULL with *allowed: the methods that the path has, or NULL when there is no such
 * path. *rest receives what follows a prefix. */
const pm_route *pm_route_find(const char *method, const char *path, const char **rest, char allowed[64]);

/* ---- status.c: answers about the server ---- */
void pm_answer_health(pm_exchange *exchange);
void pm_answer_version(pm_exchange *exchange);
void pm_answer_models(pm_exchange *exchange);
void pm_answer_model(pm_exchange *exchange);
void pm_answer_metrics(pm_exchange *exchange);

/* ---- text.c: tokens and templates ---- */
void pm_work_tokenize(pm_exchange *exchange);
void pm_work_detokenize(pm_exchange *exchange);
void pm_work_template(pm_exchange *exchange);

/* ---- messages_read.c ---- */
void pm_work_count_tokens(pm_exchange *exchange);

/* ---- openai.c: what OpenAI's protocols have in common ---- */
json_t *pm_openai_error(const pm_refusal *refusal);

/* ---- memory.c ---- */

/* How many bytes timelines may take: `available` is what memory the system could give, `weights` the size of the
 * model's files (which are read through the page cache), `timeline` what one that fills the context takes, `parallel`
 * how many are written at once. */
uint64_t pm_cache_budget(uint64_t available, uint64_t weights, uint64_t timeline, int parallel);

/* What memory the system could give to this process; UINT64_MAX where it does not say. */
uint64_t pm_memory_available(void);

#endif
