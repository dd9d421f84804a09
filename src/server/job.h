/* What a request asks of the model, and its answers, whatever the protocol.
 *
 * A dialect reads a JSON body into a pm_ask. The job renders the prompt, makes one request of the scheduler for each
 * answer, and takes what comes apart: text, reasoning and calls gather in pm_choice, and with `stream` the dialect is
 * told every piece as it comes. */
#ifndef PM_JOB_H
#define PM_JOB_H

#include "exchange.h"

enum {
    PM_STOP_MAX = 16,
    PM_STOP_BYTES = 1024, /* of each, since the end of an answer is compared with all of them for every token */
    PM_CHOICES_MAX = 128, /* answers to a request; no more than may wait either */
    PM_QUEUE = 64         /* default of pm_scheduler_options.queue */
};

/* How much a model may use its tools. */
typedef enum pm_tool_use { PM_TOOLS_AUTO, PM_TOOLS_NONE, PM_TOOLS_REQUIRED } pm_tool_use;

/* Strings and values are borrowed from the body. */
typedef struct pm_ask {
    const char *model;  /* NULL: the only one there is */
    json_t *messages;   /* of a chat; NULL: `prompt` counts */
    json_t *system;     /* for the dialect: what stands before the messages */
    json_t *tools;      /* of a chat, or NULL */
    json_t *variables;  /* of the chat template, or NULL */
    json_t *prompt;     /* text, a list of ids, or a list of either of these */
    const char *effort; /* of reasoning, or NULL */
    int thinking;       /* for the dialect: 1 asked for, -1 unwanted, 0 not said */
    pm_tool_use tool_use;
    const char *function;  /* of the tools, the one that must be called; NULL: any */
    json_t *schema;        /* of the answer, or NULL */
    char schema_at[64];    /* where the request has it */
    const char *choice_at; /* the same of `function` */
    json_t *allowed;       /* names of the tools that may be used; NULL: all */
    bool json_object;      /* the answer is some JSON object */
    bool one_call;         /* the answer ends after its first call */
    int64_t max_tokens;    /* -1: what the context leaves */
    int64_t seed;          /* when `seeded`, else a random one */
    bool seeded;
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
    bool no_generation_prompt;
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
    size_t unplaced;         /* tokens whose text has not come yet */
    bool thinking;           /* the last event was reasoning */
    size_t characters;       /* for the dialect: of the text up to the last token */
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
    const char *prefix;            /* of the ids of answers */
    const char *chat;              /* the field that has the messages; NULL: ask.prompt counts */
    bool always;                   /* piece and finish are called without ask.stream too */
    const struct pm_field *fields; /* of the body, see fields.h; the target is the job's pm_ask */
    /* What tables cannot say: checks, defaults, conversions. False with a refusal. */
    bool (*read)(pm_job *job, pm_refusal *refusal);
    bool echoes;      /* answers have members of the request */
    const char *ping; /* what a stream says while there is nothing to say; NULL: a comment */
    /* ---- with ask.stream only, see `always` ---- */
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
    char id[64];                     /* of the answer, the dialect's prefix included */
    int64_t created;                 /* Unix time */
    char *tools;                     /* JSON text, NULL: none that may be used */
    struct pm_kept_constraint *held; /* see constrain.c */
    pm_constraint *constraint;       /* of the answers, NULL: none */
    pm_prompt *prompts;
    size_t n_prompts;
    pm_choice *choices; /* n_prompts * ask.n */
    size_t n_choices, n_ended;
    pm_str line;     /* of the stream, in the making */
    size_t sequence; /* for the dialect: events of the stream so far */
    bool begun;      /* the stream's first bytes are out */
    bool failed;     /* refused or broken: what still comes is dropped */
};

/* Reads an exchange's body, which asks for answers of the model, up to the tokens of the prompt (a handler, see
 * worker.h): exchange->job, unless it has been refused. */
void pm_job_read(pm_exchange *exchange);

/* Begins to answer. This and all that follows is the engine's thread's. */
void pm_job_start(pm_job *job);

/* Frees a job that has not been started; with a refusal (or NULL) the exchange is told. */
void pm_job_drop(pm_job *job, const pm_refusal *refusal);

/* Ends what a client who left asked for, in the next step. */
void pm_job_cancel(pm_job *job);

/* Ends a job with an error, before its stream has begun or after. */
void pm_job_fail(pm_job *job, const pm_refusal *refusal);

/* Tokens of all answers together. */
typedef struct pm_usage {
    size_t prompt, cached, answer, reasoning;
} pm_usage;
pm_usage pm_job_usage(const pm_job *job);

/* Begins the job's stream, unless it has begun. */
void pm_job_begin(pm_job *job);

/* Writes to the job's stream: "data: JSON\n\n", after "event: NAME\n" when there is a name. Drops the reference. */
void pm_job_send(pm_job *job, const char *event, json_t *value);

/* Writes to the job's stream what tells client and proxies that it goes on; begins it. */
void pm_job_ping(pm_job *job);

/* Parses the body of an exchange, an object, and frees its text. NULL with a refusal. */
json_t *pm_body_read(pm_exchange *exchange, pm_refusal *refusal);

/* A chat as the library takes it: JSON texts that pm_ask_chat_free frees. False with a refusal. */
bool pm_ask_chat(const pm_ask *ask, pm_chat *out, pm_refusal *refusal);
void pm_ask_chat_free(pm_chat *chat);

/* Adds a variable of the chat template (taken over) where the request does not set it itself; false without memory. */
bool pm_ask_variable(pm_job *job, const char *name, json_t *value);

/* Adds those that ask.effort stands for. False with a refusal. */
bool pm_ask_effort(pm_job *job, pm_refusal *refusal);

/* Leaves of ask.tools (a chat's) those that ask.allowed names, and looks for ask.function. False with a refusal. */
bool pm_ask_choose_tools(pm_job *job, pm_refusal *refusal);

/* Refuses a request for a model that is not here. */
bool pm_ask_check_model(const pm_server *server, const char *model, pm_refusal *refusal);

/* What a token says, as text (U+FFFD where it is part of a character) and as bytes (null for a control token). */
json_t *pm_token_text(const pm_server *server, pm_token id);
json_t *pm_token_byte_list(const pm_server *server, pm_token id);

/* A log-probability as JSON can have it. */
double pm_finite(double logprob);

/* The entries of logprobs that have not been taken yet; NULL where there are none. */
json_t *pm_choice_take_logprobs(pm_choice *choice);

/* The refusal that an error of the library stands for. Where things are on this machine is for the log only. */
void pm_refuse_status(const pm_exchange *exchange, pm_refusal *refusal, int status, const pm_error *err);

extern const pm_dialect pm_chat_dialect, pm_completions_dialect, pm_responses_dialect, pm_messages_dialect;

#endif
