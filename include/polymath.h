/* polymath: runs mixture-of-experts and hybrid language models from safetensors checkpoints.
 *
 * Two nouns: a pm_engine is one loaded model on one device; a pm_session is one timeline of tokens on it. A caller
 * always gives the whole prefix it wants (pm_session_sync); the session decides what to reuse, roll back or compute.
 *
 *     pm_chat chat = {.messages = "[{\"role\": \"user\", \"content\": \"What is a dog?\"}]"};
 *     pm_engine *engine;
 *     pm_session *session;
 *     pm_prompt prompt;
 *     pm_result result;
 *     pm_error err;
 *     if (pm_engine_open(&engine, "models/default", NULL, &err) == PM_OK &&
 *         pm_session_new(&session, engine, &err) == PM_OK &&
 *         pm_chat_prompt(engine, &chat, &prompt, &err) == PM_OK &&
 *         pm_generate(session, &prompt, NULL, &result, &err) == PM_OK)
 *         puts(result.text);
 *     else
 *         fprintf(stderr, "%s\n", err.message);
 *
 * Functions that can fail return PM_OK (0) or a negative pm_status and fill `err` (which may be NULL) with one sentence
 * that names the file, tensor or field. On failure outputs are untouched. The library never exits, aborts or prints.
 *
 * Files: weights stay mapped. A file that becomes shorter is an error of the next call; while a call is reading it the
 * kernel sends SIGBUS, which is the program's to handle.
 *
 * Threads: one thread at a time per engine (its sessions included); pm_session_cancel may be called from any thread and
 * from a signal handler. What is called back may work with other sessions; with the one that it is called for it may
 * only do what reads (tokens, logits, cancel). Text is UTF-8 with explicit lengths; JSON crosses as text. */
#ifndef POLYMATH_H
#define POLYMATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PM_VERSION "0.1.0"

#if defined(__GNUC__)
#define PM_API __attribute__((visibility("default")))
#else
#define PM_API
#endif

/* ---- errors ---- */

typedef enum pm_status {
    PM_OK = 0,
    PM_ERR_INVALID = -1,     /* a bad argument or request: invalid UTF-8, bad JSON, a template's own complaint */
    PM_ERR_UNSUPPORTED = -2, /* well-formed, but not something this build runs: family, config value, format */
    PM_ERR_FORMAT = -3,      /* a file that contradicts itself or its format */
    PM_ERR_IO = -4,          /* a file that cannot be opened, read or written */
    PM_ERR_MEMORY = -5,      /* an allocation failed or would pass a limit */
    PM_ERR_LIMIT = -6,       /* longer than the context; the message has both numbers */
    PM_ERR_CANCELLED = -7,   /* pm_session_cancel was called */
    PM_ERR_NUMERIC = -8,     /* a value that is not finite, or does not fit the cache's type */
    PM_ERR_BUSY = -9         /* as many requests wait as may */
} pm_status;

typedef struct pm_error {
    pm_status code;
    char message[1024]; /* one sentence, no newline, always terminated */
} pm_error;

/* ---- engine ---- */

typedef int32_t pm_token;
typedef struct pm_engine pm_engine;
typedef struct pm_session pm_session;

/* How keys, values and what else attention remembers is kept. q8: 8-bit integers, with one f32 scale for each 64
 * neighbours of a vector (or fewer, at its end): the largest magnitude of them / 127. */
typedef enum pm_kv_type { PM_KV_F16, PM_KV_F32, PM_KV_Q8 } pm_kv_type;
/* How the activations that meet quantised weights (affine, mxfp4, nvfp4) are rounded: to 16 or to 8 bits, with a scale
 * for each group of the weights. Weights of other formats meet f32 activations in both. */
typedef enum pm_precision { PM_PRECISION_EXACT, PM_PRECISION_FAST } pm_precision;
/* Where a model runs. auto: the CPU. MLX (docs/macos.md) is there when the library was built with it; mlx: on the
 * processor, mlx_gpu: on the GPU. Its results are near those of the CPU, not the same bits; it has neither q8 caches
 * nor the options threads, simd, precision and profile. */
typedef enum pm_device { PM_DEVICE_AUTO, PM_DEVICE_CPU, PM_DEVICE_MLX, PM_DEVICE_MLX_GPU } pm_device;
typedef enum pm_simd {
    PM_SIMD_BEST,
    PM_SIMD_SCALAR,
    PM_SIMD_AVX2, /* x86-64 */
    PM_SIMD_AVX512,
    PM_SIMD_AMX,  /* with tiles, for which Linux asks to be asked; the library does, for BEST too */
    PM_SIMD_NEON, /* 64-bit ARM: what all of them have, */
    PM_SIMD_DOT,  /* with the instruction SDOT, */
    PM_SIMD_I8MM  /* and with SMMLA */
} pm_simd;

/* Zero-initialised is the default of every field. */
typedef struct pm_engine_options {
    pm_device device;
    int threads;         /* 0: one per physical core that this process may use */
    int ctx;             /* longest timeline of a session in tokens; 0: the model's max_position_embeddings */
    int step_tokens;     /* most tokens computed at once; 0: 512. Does not change any result */
    int snapshot_stride; /* a session whose layers have states keeps one to go back to every so many tokens, while they
                            fit; 0: 1024. Does not change any result */
    pm_kv_type kv_type;  /* element type of the attention cache */
    pm_simd simd;        /* instruction set; every level gives the same bits */
    pm_precision precision;
    bool profile; /* measure every operation: pm_engine_profile */
    /* Called while loading with fraction 0..1; may be NULL. */
    void (*progress)(void *user, double fraction);
    void *user;
} pm_engine_options;

/* Opens the checkpoint in directory `dir`. `options` may be NULL. */
PM_API int pm_engine_open(pm_engine **out, const char *dir, const pm_engine_options *options, pm_error *err);

/* Frees the engine; NULL is allowed. Its sessions must have been freed before. */
PM_API void pm_engine_close(pm_engine *engine);

/* What is known of a checkpoint. Strings are terminated; sizes are bytes. */
typedef struct pm_info {
    bool supported;
    char verdict[1024];     /* "supported", or why it is refused */
    char model_type[64];    /* as the config spells it; empty when there is none */
    char family[64];        /* empty when no family has this model_type */
    char formats[256];      /* such as "affine 4-bit group 64 (210 matrices), bf16 (1 matrix)" */
    char device[128];       /* such as "cpu (avx2), 2 threads" */
    pm_precision precision; /* in force */
    int layers, vocab, ctx; /* ctx: the limit in force (the option, else the model's) */
    int64_t parameters;     /* weights, counted unquantised */
    int64_t active;         /* of those, read for one token (routed experts counted top-k times, embedding one row) */
    uint64_t weight_bytes;  /* as stored */
    uint64_t cache_bytes;   /* of one session filled to ctx: rows and states */
    uint64_t row_bytes;     /* of that, bytes per token */
    uint64_t state_bytes;   /* of that, bytes per session whatever its length */
    char notes[512];        /* what a user may want to know, such as weights beside the checkpoint that were not read */
} pm_info;

/* Describes the checkpoint in `dir` without running it. A checkpoint that can be read but not run succeeds with
 * supported = false; only a directory that cannot be read at all fails. */
PM_API int pm_inspect(const char *dir, const pm_engine_options *options, pm_info *out, pm_error *err);

/* Describes an open engine. */
PM_API void pm_engine_info(const pm_engine *engine, pm_info *out);

/* ---- text ---- */

typedef struct pm_prompt {
    pm_token *ids; /* owned: pm_prompt_free */
    size_t n;
    size_t mark; /* tokens before the generation prompt (n when there is none): where the next turn will branch off */
    bool reasoning; /* the chat template left a reasoning block open, so that the answer begins inside it */
} pm_prompt;

typedef struct pm_chat {
    const char *messages;  /* JSON array of {"role", "content", ...}, required */
    const char *tools;     /* JSON array of functions, {"name", ...} or {"function": {"name", ...}, ...}; or NULL */
    const char *variables; /* JSON object of further template variables, such as {"enable_thinking":false}, or NULL */
    bool no_generation_prompt; /* leave the assistant's opening out */
} pm_chat;

/* Renders the model's chat template over the messages and encodes it. Only text written by the template itself can
 * become control tokens: the same characters inside a message stay text. */
PM_API int pm_chat_prompt(const pm_engine *engine, const pm_chat *chat, pm_prompt *out, pm_error *err);

/* The rendered template as text (owned by the caller: pm_free). */
PM_API int pm_chat_text(const pm_engine *engine, const pm_chat *chat, char **text, size_t *len, pm_error *err);

/* The same without the model: renders the chat template of the checkpoint in `dir`, of which only tokenizer and
 * template are read. `control` (may be NULL) receives [len] bytes, 1 where a byte belongs to a control token; pm_free
 * it too. A BOS token that the template leaves to the tokenizer is not in the text. */
PM_API int pm_template_text(const char *dir, const pm_chat *chat, char **text, size_t *len, uint8_t **control,
                            pm_error *err);

/* Encodes text as it is, control tokens and the tokenizer's post-processor included (a raw completion). */
PM_API int pm_text_prompt(const pm_engine *engine, const char *text, size_t len, pm_prompt *out, pm_error *err);

/* Takes ids as they are; an id outside the vocabulary is an error. */
PM_API int pm_ids_prompt(const pm_engine *engine, const pm_token *ids, size_t n, pm_prompt *out, pm_error *err);

PM_API void pm_prompt_free(pm_prompt *prompt);

/* Decodes ids to text (owned by the caller: pm_free). Control tokens are left out unless `special`. */
PM_API int pm_decode(const pm_engine *engine, const pm_token *ids, size_t n, bool special, char **text, size_t *len,
                     pm_error *err);

/* The bytes that a token adds to a text that has begun, which may be a part of a character (the caller's: pm_free);
 * none for a control token. */
PM_API int pm_token_bytes(const pm_engine *engine, pm_token id, char **bytes, size_t *len, pm_error *err);

/* ---- a tokenizer without its model ---- */

typedef struct pm_tokenizer pm_tokenizer;

/* Reads tokenizer.json and, where it is there, tokenizer_config.json of directory `dir`. A component of a kind that is
 * not known is an error that names it. An open tokenizer may be used from several threads. */
PM_API int pm_tokenizer_open(pm_tokenizer **out, const char *dir, pm_error *err);
PM_API void pm_tokenizer_close(pm_tokenizer *tokenizer); /* NULL is allowed */

/* Encodes text as pm_text_prompt does; with `plain` control tokens are not recognised in it, and none are added. */
PM_API int pm_tokenizer_ids(const pm_tokenizer *tokenizer, const char *text, size_t len, bool plain, pm_prompt *out,
                            pm_error *err);

/* Decodes as pm_decode does. */
PM_API int pm_tokenizer_text(const pm_tokenizer *tokenizer, const pm_token *ids, size_t n, bool special, char **text,
                             size_t *len, pm_error *err);

/* A token as tokenizer.json spells it, terminated and valid until the tokenizer is closed; NULL when there is none. */
PM_API const char *pm_tokenizer_token(const pm_tokenizer *tokenizer, pm_token id);

/* ---- further ---- */

/* True when text[0..len) is well-formed UTF-8 (no surrogates, no overlong forms). *bad, if not NULL, receives the
 * offset of the first byte that is not. */
PM_API bool pm_utf8_valid(const char *text, size_t len, size_t *bad);

PM_API void pm_free(void *memory);

/* ---- sessions ---- */

/* An empty timeline. Memory is taken as it grows. */
PM_API int pm_session_new(pm_session **out, pm_engine *engine, pm_error *err);
PM_API void pm_session_free(pm_session *session);

/* A second timeline with the same tokens; cache rows are shared until one of them writes. */
PM_API int pm_session_fork(pm_session **out, const pm_session *session, pm_error *err);

/* Writes the timeline, all that the layers remember of it, and note_len bytes of the caller's own to a file; a file
 * or a symbolic link that is there is replaced when the new one is complete. Only its owner may read it. `note` may be
 * NULL when note_len is 0. */
PM_API int pm_session_save(const pm_session *session, const char *path, const void *note, size_t note_len,
                           pm_error *err);

/* A session as it was saved, bit for bit. The file must be whole, of the same checkpoint, kv_type and precision, and
 * its tokens must fit the context; else the message says what differs. `note` (may be NULL, as note_len) receives the
 * caller's own bytes, terminated by a 0 that does not count: pm_free. */
PM_API int pm_session_load(pm_session **out, pm_engine *engine, const char *path, char **note, size_t *note_len,
                           pm_error *err);

/* Makes the next or the running pm_session_sync, pm_step or pm_generate on this session end with PM_ERR_CANCELLED
 * (generate: finish reason "cancelled") at the next chunk or token. The flag is cleared by the call that obeys it. */
PM_API void pm_session_cancel(pm_session *session);

typedef struct pm_sync_options {
    size_t mark; /* a position worth a snapshot, such as pm_prompt.mark; 0: none */
    void (*progress)(void *user, size_t done, size_t total); /* after each chunk; may be NULL */
    void *user;
} pm_sync_options;

typedef struct pm_sync_stats {
    size_t reused;   /* tokens taken from the timeline or a snapshot */
    size_t computed; /* tokens that went through the model, replays included */
} pm_sync_stats;

/* Makes the timeline equal to ids[0..n), n >= 1, computing as little as possible; afterwards pm_session_logits is the
 * prediction after the last token. When it fails or is cancelled the timeline is a (possibly shorter) prefix of what
 * was asked or of what was there. `options` and `stats` may be NULL. */
PM_API int pm_session_sync(pm_session *session, const pm_token *ids, size_t n, const pm_sync_options *options,
                           pm_sync_stats *stats, pm_error *err);

/* The tokens of the timeline; valid until the next call on the session. */
PM_API size_t pm_session_tokens(const pm_session *session, const pm_token **ids);

/* [vocab] f32 logits after the last token; valid until the next call on the session. NULL for an empty timeline, and
 * where a call that failed cut one short (the next sync computes them). */
PM_API const float *pm_session_logits(const pm_session *session);

typedef struct pm_work {
    pm_session *session;    /* each session at most once in a call */
    const pm_token *tokens; /* appended to its timeline */
    size_t n;               /* >= 1 */
    float *logits;          /* NULL, or [n, vocab] f32: receives the logits after each of the tokens */
} pm_work;

/* Advances many sessions together. A session's results do not depend on its company. When it fails, each timeline is a
 * prefix of what was asked. */
PM_API int pm_step(pm_engine *engine, const pm_work *work, int n, pm_error *err);

/* ---- generation ---- */

typedef struct pm_bias {
    pm_token id;
    float bias; /* -100 to 100 */
} pm_bias;

/* Applied in this order: penalties (repetition, presence, frequency), bias, temperature, top-k, top-p, min-p, XTC. */
typedef struct pm_sampling {
    float temperature; /* 0: greedy (ties: the lower id), after penalties and bias */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;     /* of a xoshiro256** stream seeded through splitmix64; one draw per token, and one before it
                          when xtc_probability is above 0 and the temperature too */
    float repetition_penalty; /* 1 or 0: off. Logits of the tokens in prompt and answer are divided by it when above 0,
                                 else multiplied (Hugging Face) */
    float presence_penalty;   /* -2 to 2, 0: off. Subtracted from the logits of the tokens in the answer (OpenAI) */
    float frequency_penalty;  /* -2 to 2, 0: off. The same, as many times as the token stands there (OpenAI) */
    float xtc_probability;    /* 0: off. With this probability, of the tokens that are at least xtc_threshold likely */
    float xtc_threshold;      /* all but the least likely are left out ("exclude top choices"), unless that would leave
                                 out a newline or a token that ends the answer; above 0.5 that never happens */
    const pm_bias *bias;      /* n_bias numbers added to logits; of the same token they add up. Must stay until the
                                 answer is there */
    int n_bias;
} pm_sampling;

/* The model's generation_config.json over Hugging Face's values (temperature 1, top-k 50). Greedy where do_sample is
 * false, or is absent and so is temperature. seed is 0, xtc_threshold 0.1; what the file cannot say is off. */
PM_API void pm_engine_sampling(const pm_engine *engine, pm_sampling *out);

/* The max_new_tokens of the same file, 0 when it has none. What else it asks for and is not applied, such as beam
 * search, is in pm_info.notes. */
PM_API size_t pm_engine_max_tokens(const pm_engine *engine);

/* What an answer may be: JSON of a schema, or calls of tools. A token that would lead away from it is ruled out after
 * penalties and biases, before temperature and filters; a token that ends the answer is allowed where the answer is
 * complete, and nowhere else. So an answer that is not cut short (PM_FINISH_LENGTH, a stop string, a cancel) is a valid
 * one. Reasoning comes before it, in a block that the prompt opened (pm_prompt.reasoning) or one that the answer opens,
 * and is free. docs/schema.md says what of JSON Schema is read; anything else is refused by name. */
typedef struct pm_constraint pm_constraint;

/* Zero-initialised is the default of every field. One of the first two, or tools, must be given. */
typedef struct pm_constraint_options {
    const char *schema;   /* JSON Schema (JSON text) of the answer, or NULL */
    bool json_object;     /* the answer is some JSON object */
    const char *tools;    /* JSON array as in pm_chat, or NULL. The answer makes calls, as the model's chat template for
                             tools writes them; with a schema or json_object it may be one or the other */
    const char *function; /* of the tools, the one that is called; NULL: any */
    bool parallel;        /* more than one call may be made */
} pm_constraint_options;

/* A constraint for answers of this model, used by any number of them. PM_ERR_UNSUPPORTED and PM_ERR_INVALID say where
 * in the schema, and what. */
PM_API int pm_constraint_new(pm_constraint **out, pm_engine *engine, const pm_constraint_options *options,
                             pm_error *err);
PM_API void pm_constraint_free(pm_constraint *constraint); /* NULL is allowed; before the engine is closed */

typedef struct pm_logprob {
    pm_token id;
    float logprob; /* natural logarithm, of the softmax of the raw logits */
} pm_logprob;

typedef struct pm_generate_options {
    pm_sampling sampling;
    size_t max_tokens; /* 0: until prompt and answer fill the context (which leaves room for one token at least) */
    const char *const *stop; /* n_stop terminated strings; the text ends before the first one found */
    int n_stop;
    bool logprobs;             /* record the chosen token's log-probability and top_logprobs others per token */
    int top_logprobs;          /* 0..1000, ordered by (logit descending, id ascending) */
    bool ignore_eos;           /* go on after the model's stop tokens; not with a constraint */
    bool markers;              /* keep, for pm_parser, the control tokens that mark reasoning and calls in the text */
    pm_constraint *constraint; /* what the answer may be, NULL: anything. Must stay until the answer is there */
    /* Called with text as it becomes final: whole characters, nothing that may still turn into a stop string. May be
     * NULL. A non-zero return ends the generation as pm_session_cancel does. */
    int (*on_text)(void *user, const char *text, size_t len);
    /* Called with every sampled token, before the text that it makes final; may be NULL. Without `logprobs` logprob is
     * 0 and top NULL, else top has top_logprobs entries. */
    void (*on_token)(void *user, pm_token id, float logprob, const pm_logprob *top);
    /* Called while the prompt is computed; may be NULL. */
    void (*on_prompt)(void *user, size_t done, size_t total);
    void *user;
} pm_generate_options;

typedef enum pm_finish { PM_FINISH_STOP, PM_FINISH_LENGTH, PM_FINISH_CANCELLED } pm_finish;

typedef struct pm_result {
    char *text; /* the answer, terminated; stop tokens and stop strings left out */
    size_t len;
    pm_token *ids; /* every sampled token, the stop token included */
    size_t n;
    float *logprobs; /* [n] when asked for, else NULL */
    pm_logprob *top; /* [n, top_logprobs] when asked for, else NULL */
    pm_finish finish;
    int stop;             /* which of the stop strings ended it, -1: none */
    pm_sync_stats prompt; /* what the prompt cost */
    double queue_seconds; /* waiting in a scheduler's queue; the next two count from its end */
    double prompt_seconds, first_token_seconds, decode_seconds;
} pm_result;

/* Syncs the session to the prompt and samples until a stop token, a stop string, max_tokens, the end of the context, or
 * a cancel. Afterwards the timeline holds the prompt and the sampled tokens but the last. `options` may be NULL: the
 * sampling and the number of tokens are then the model's. */
PM_API int pm_generate(pm_session *session, const pm_prompt *prompt, const pm_generate_options *options, pm_result *out,
                       pm_error *err);
PM_API void pm_result_free(pm_result *result);

/* ---- many answers at once ----
 *
 * A scheduler answers many requests together on one engine. Each step computes a token for every answer that is being
 * written, and beside them a piece of the prompts that are being read, as large as keeps the step short. What an answer
 * says does not depend on its company: it is what pm_generate gives.
 *
 * The timelines of answers that have ended stay, so that a later prompt computes only what none of them has, on models
 * with states too. One bound holds for the memory of all timelines; where they do not fit, the kept ones that save
 * least for their size go first (GreedyDual-Size, Cao and Irani 1997), then the youngest answers wait and are taken up
 * again later, where they were.
 *
 * With a cache_dir timelines outlive memory and the scheduler. They are written when they have to go, when the
 * scheduler is freed, and in between by a thread that takes its time, so that a process that is killed loses the last
 * of them only. A prompt that begins as one of them does is read from there when that is faster than to compute it. The
 * files (those of pm_session_save) are for one checkpoint, kv_type and precision; others in the folder are left alone,
 * and what is not whole is not trusted. Several processes may share a folder.
 *
 * The rule of one thread holds: all of these are called by the thread that uses the engine. */

typedef struct pm_scheduler pm_scheduler;
typedef struct pm_request pm_request;

/* Zero-initialised is the default of every field. */
typedef struct pm_scheduler_options {
    int parallel;         /* answers in the making, at most; 0: 8 */
    int queue;            /* requests that wait for their turn, at most; 0: 64 */
    uint64_t cache_bytes; /* of all timelines together, at most; 0: room for one that fills the context, and half as
                             much again */
    double step_seconds;  /* what a step may take while it computes prompts beside answers, about; 0: 0.1 */
    const char
        *cache_dir;       /* a folder for kept timelines, made where there is none; NULL: they end with the scheduler */
    uint64_t disk_bytes;  /* of all timelines in it together, other models' too, at most; 0: 10 GiB */
    double flush_seconds; /* how long pm_scheduler_free may write to it, about; those worth most go first; 0: 20 */
} pm_scheduler_options;

typedef struct pm_scheduler_info {
    int live, waiting;                  /* requests: being answered, and not yet taken up or put back */
    int kept;                           /* timelines of answers that have ended */
    uint64_t held_bytes, cache_bytes;   /* memory of all timelines, and its bound */
    uint64_t reused, computed;          /* tokens of prompts so far */
    uint64_t sampled;                   /* tokens of answers so far */
    uint64_t evicted, put_back;         /* timelines dropped and answers interrupted for want of memory */
    int stored;                         /* of cache_dir: timelines of this model, as far as is known */
    uint64_t stored_bytes, disk_bytes;  /* bytes of all timelines, and their bound */
    uint64_t fetched;                   /* timelines read */
    uint64_t disk_ignored, disk_failed; /* files that are damaged or not of this model; timelines that could not be
                                           written */
} pm_scheduler_info;

/* The engine may be used otherwise between two steps, and must stay open until the scheduler is freed. */
PM_API int pm_scheduler_new(pm_scheduler **out, pm_engine *engine, const pm_scheduler_options *options, pm_error *err);

/* Ends all requests as cancelled and frees the scheduler; NULL is allowed. */
PM_API void pm_scheduler_free(pm_scheduler *scheduler);
PM_API void pm_scheduler_describe(const pm_scheduler *scheduler, pm_scheduler_info *out);

/* How a request ended, called once: status PM_OK with a result, which is the callee's (pm_result_free), or an error.
 * The request is gone when the step is over. */
typedef void pm_request_end(void *user, int status, const pm_error *err, pm_result *result);

/* Queues a request. `prompt` is copied; of `options` (NULL: the model's) the stop strings, biases and constraint must
 * stay until the end, and its callbacks are called by pm_scheduler_step with its `user`. They may make and cancel
 * requests. PM_ERR_LIMIT: the prompt is longer than the context; PM_ERR_MEMORY: it cannot fit cache_bytes; PM_ERR_BUSY:
 * the queue is full. An answer ends with PM_FINISH_LENGTH where context or cache_bytes have no room for more of it. */
PM_API int pm_request_new(pm_request **out, pm_scheduler *scheduler, const pm_prompt *prompt,
                          const pm_generate_options *options, pm_request_end *on_end, pm_error *err);

/* Makes the request end as cancelled, in the next step. */
PM_API void pm_request_cancel(pm_request *request);

/* Takes one step; false when there was nothing to do. What fails ends the request that it belongs to and no other. */
PM_API bool pm_scheduler_step(pm_scheduler *scheduler);

/* ---- answers taken apart ----
 *
 * Models write reasoning and calls of tools into the text of an answer, between markers that their chat template shows.
 * A parser takes them out: fed with the text of pm_generate_options.on_text, in any pieces, it gives events whose
 * texts, put together, do not depend on the pieces.
 *
 * A call is given out when it is complete and well-formed: its arguments are a JSON object that pm_chat takes. Anything
 * else stays text, byte for byte. White space beside a block is part of the block: all before it, and after it all up
 * to the last newline. */

typedef enum pm_event_kind {
    PM_EVENT_TEXT,      /* of the answer itself */
    PM_EVENT_REASONING, /* text that is not for the answer */
    PM_EVENT_CALL,      /* a call begins: text is the function's name */
    PM_EVENT_ARGUMENTS, /* JSON text of its arguments, an object */
    PM_EVENT_CALL_END
} pm_event_kind;

/* Texts are len bytes, not terminated, valid during the callback. */
typedef struct pm_event {
    pm_event_kind kind;
    size_t call; /* of the last three kinds: which one, from 0 */
    const char *text;
    size_t len;
    const char *id; /* of PM_EVENT_CALL: as the model named the call, NULL when its format has no ids */
    size_t id_len;
} pm_event;

typedef struct pm_parser_options {
    const char
        *tools;      /* JSON array as in pm_chat, or NULL: gives the types of arguments that are not written as JSON */
    bool no_calls;   /* take no calls out, as for a request without tools */
    bool only_calls; /* the answer is held to calls (pm_constraint_options); for pm_parser_cut */
    bool reasoning;  /* pm_prompt.reasoning */
    void (*on_event)(void *user, const pm_event *event);
    void *user;
} pm_parser_options;

typedef struct pm_parser pm_parser;

/* A parser for one answer of this model, by its chat template (with tools, the one for tools). */
PM_API int pm_parser_new(pm_parser **out, const pm_engine *engine, const pm_parser_options *options, pm_error *err);

/* Takes the next piece of the answer, and its end. Memory is bounded: what would have to be held beyond 4 MiB to become
 * a call is text. */
PM_API int pm_parser_feed(pm_parser *parser, const char *text, size_t len, pm_error *err);
PM_API int pm_parser_end(pm_parser *parser, pm_error *err);

/* In place of pm_parser_end, for an answer that ended where it was not complete (PM_FINISH_LENGTH): calls that are
 * whole are given out although their block is not, and what can be nothing but the beginning of another call is left
 * out. */
PM_API int pm_parser_cut(pm_parser *parser, pm_error *err);
PM_API void pm_parser_free(pm_parser *parser);

/* A whole answer as a message that pm_chat.messages takes (JSON text, the caller's: pm_free): an object with role,
 * content, and where there are some reasoning_content and tool_calls. Calls without an id of the model's are numbered:
 * "call00000". on_event is not called. */
PM_API int pm_parse_message(const pm_engine *engine, const pm_parser_options *options, const char *text, size_t len,
                            char **message, pm_error *err);

/* ---- measuring ----
 *
 * Every operation counts the bytes that it has to read and the arithmetic that it has to do, so that its time can be
 * compared with the least that the machine needs: the larger of bytes / read_bytes_per_second and
 * integer_ops / integer_ops_per_second + float_ops / float_ops_per_second. */

/* What calls of one operation took and cost, all together. */
typedef struct pm_op_profile {
    const char *name; /* such as "linear", "attention", "moe" */
    uint64_t calls;
    double seconds;
    uint64_t bytes; /* of parameters as stored and of cache rows, read once a call; of states, read and written. Of the
                       experts of a mixture those that were chosen */
    uint64_t integer_ops; /* multiply-adds times two with affine, mxfp4 and nvfp4 weights */
    uint64_t float_ops;   /* the others */
} pm_op_profile;

enum { PM_PROFILE_OPS = 32 };

typedef struct pm_profile {
    int n;
    pm_op_profile op[PM_PROFILE_OPS]; /* those that were called */
} pm_profile;

/* What the operations did since the engine was opened or reset. PM_ERR_INVALID without pm_engine_options.profile. */
PM_API int pm_engine_profile(const pm_engine *engine, pm_profile *out, pm_error *err);
PM_API void pm_engine_profile_reset(pm_engine *engine);

/* What the machine can do with this engine's threads. */
typedef struct pm_limits {
    int threads;
    double read_bytes_per_second;  /* plain reading of the mapped weights, or of as many as tell memory from cache */
    bool from_cache;               /* they fit into the last-level cache, so that it is this that was measured */
    double integer_ops_per_second; /* integer_ops and float_ops of the instructions that are used for them */
    double float_ops_per_second;
} pm_limits;

/* Measures them, which takes about a fifth of a second; more the first time, when the weights come from a disk. */
PM_API int pm_engine_measure(pm_engine *engine, pm_limits *out, pm_error *err);

#ifdef __cplusplus
}
#endif
#endif
