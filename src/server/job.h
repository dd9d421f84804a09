/* What a request asks of the model, and its answers, whatever the protocol.
 *
 * A dialect reads a JSON body into a pm_ask. The job renders the prompt, makes one request of the scheduler for each
 * answer, and takes what comes apart: text, reasoning and calls gather in pm_choice, and with `stream` the dialect is
 * told every piece as it comes. Everything here is the engine's thread's. */
#ifndef PM_JOB_H
#define PM_JOB_H

#include "exchange.h"

enum { PM_STOP_MAX = 16, PM_CHOICES_MAX = 128 };

/* How much a model may use its tools. */
typedef enum pm_tool_use { PM_TOOLS_AUTO, PM_TOOLS_NONE } pm_tool_use;

/* Strings and values are borrowed from the body. */
typedef struct pm_ask {
    const char *model; /* NULL: the only one there is */
    json_t *messages;  /* of a chat; NULL: `prompt` counts */
    json_t *tools;     /* of a chat, or NULL */
    json_t *variables; /* of the chat template, or NULL */
    json_t *prompt;    /* text, a list of ids, or a list of either of these */
    pm_tool_use tool_use;
    bool one_call;        /* the answer ends after its first call */
    int64_t max_tokens;   /* -1: what the model's file or the context says */
    int64_t seed;         /* -1: a random one */
    int64_t n;            /* answers to each prompt */
    pm_sampling sampling; /* without seed and biases */
    pm_bias *bias;        /* [n_bias], malloc'ed */
    int n_bias;
    const char *stop[PM_STOP_MAX];
    int n_stop;
    bool logprobs;
    int64_t top_logprobs;
    bool stream, include_usage;
    bool echo; /* the prompt's text stands before the answer */
    bool ignore_eos;
} pm_ask;

typedef struct pm_call {
    char *id, *name; /* malloc'ed */
    pm_str arguments;
} pm_call;

typedef struct pm_job pm_job;

/* Why an answer ended. */
typedef enum pm_ending { PM_ENDING_STOP, PM_ENDING_LENGTH, PM_ENDING_CALLS } pm_ending;

/* One answer. */
typedef struct pm_choice {
    pm_job *job;
    int index;
    pm_prompt *prompt; /* the job's */
    pm_request *request;
    pm_parser *parser;      /* NULL: all is text */
    pm_str text, reasoning; /* so far */
    pm_call *calls;         /* [n_calls] */
    size_t n_calls, calls_cap;
    json_t *logprobs;        /* entries that the dialect has not yet taken, as its `token` made them */
    size_t tokens, thoughts; /* sampled; of these, reasoning */
    bool thinking;           /* the last event was reasoning */
    bool begun;              /* for the dialect: its first piece is out */
    bool called;             /* with one_call: the call is complete */
    bool done;
    pm_ending ending;
    int stop_string;    /* which of pm_ask.stop ended it, -1: none */
    pm_sync_stats cost; /* of the prompt */
    void *state;        /* the dialect's own: freed by free() */
} pm_choice;

/* A protocol. All functions but `read` and `end` may be NULL. */
typedef struct pm_dialect {
    const struct pm_field *fields; /* of the body, see fields.h; the target is the job's pm_ask */
    /* What tables cannot say: checks, defaults, conversions. False with a refusal. */
    bool (*read)(pm_job *job, pm_refusal *refusal);
    /* ---- with ask.stream only ---- */
    void (*begin)(pm_job *job);                              /* before the first piece of any answer */
    void (*piece)(pm_choice *choice, const pm_event *event); /* already added to the choice */
    void (*finish)(pm_choice *choice);                       /* the answer has ended */
    /* ---- always ---- */
    json_t *(*token)(pm_choice *choice, pm_token id, float logprob, const pm_logprob *top); /* an entry of logprobs */
    void (*end)(pm_job *job); /* all answers have ended: the whole answer, or with ask.stream the end of the stream */
    json_t *(*error)(const pm_refusal *refusal);            /* the envelope of an error */
    void (*broken)(pm_job *job, const pm_refusal *refusal); /* an error after a stream has begun */
} pm_dialect;

struct pm_job {
    pm_exchange *exchange;
    pm_server *server;
    const pm_dialect *dialect;
    json_t *body; /* holds what ask borrows */
    pm_ask ask;
    char id[64];     /* of the answer, the dialect's prefix included */
    int64_t created; /* Unix time */
    char *tools;     /* JSON text, NULL: none that may be used */
    pm_prompt *prompts;
    size_t n_prompts;
    pm_choice *choices; /* n_prompts * ask.n */
    size_t n_choices, n_ended;
    bool begun;  /* the stream's first bytes are out */
    bool failed; /* refused or broken: what still comes is dropped */
};

/* Takes an exchange whose body asks for answers of the model (a handler, see worker.h). */
void pm_job_start(pm_exchange *exchange);

/* Ends what a client who left asked for, in the next step. */
void pm_job_cancel(pm_job *job);

/* Ends a job with an error, before its stream has begun or after. */
void pm_job_fail(pm_job *job, const pm_refusal *refusal);

/* Tokens of all answers together. */
typedef struct pm_usage {
    size_t prompt, cached, answer, reasoning;
} pm_usage;
pm_usage pm_job_usage(const pm_job *job);

/* Writes to the job's stream: "data: JSON\n\n", after "event: NAME\n" when there is a name. Drops the reference. */
void pm_job_send(pm_job *job, const char *event, json_t *value);

/* Renders a chat, for job.c, apply-template and others that count tokens. False with a refusal. */
bool pm_job_prompt(pm_server *server, const pm_ask *ask, char **tools, pm_prompt *out, pm_refusal *refusal);

/* The refusal that an error of the library stands for. */
void pm_refuse_status(pm_refusal *refusal, int status, const pm_error *err);

extern const pm_dialect pm_chat_dialect, pm_completions_dialect;

#endif
