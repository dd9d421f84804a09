/* The engine's own: what an open model consists of, and the room that its steps work in. */
#ifndef PM_ENGINE_H
#define PM_ENGINE_H

#include "backend/profile.h"
#include "base/base.h"
#include "engine/constraint.h"
#include "engine/defaults.h"
#include "files/checkpoint.h"
#include "files/config.h"
#include "model/model.h"
#include "text/reply.h"
#include "text/template.h"
#include "text/tokenizer.h"

enum {
    PM_STEP_TOKENS = 512,         /* the default of pm_engine_options.step_tokens */
    PM_STEP_TOKENS_MAX = 1 << 16, /* the largest that is accepted */
    PM_SNAPSHOT_STRIDE = 1024     /* that of pm_engine_options.snapshot_stride */
};

struct pm_engine {
    pm_config *config;
    pm_checkpoint *checkpoint;
    pm_backend *backend;
    pm_profiler *profiler; /* NULL unless asked for; the backend owns it */
    pm_model *model;
    pm_tokenizer *tokenizer;
    pm_template *chat, *chat_tools;     /* NULL when the model has none; the second is for requests with tools */
    pm_reply_format reply, reply_tools; /* what their answers have beside text */
    pm_token *markers;                  /* special tokens that mark it */
    size_t n_markers;
    json_t *special_tokens; /* object: bos_token, eos_token, ... as text; the templates' own */
    pm_token bos;           /* what the post-processor puts in front of a text, -1: nothing */
    pm_token newline;       /* "\n" as one token, -1: there is none */
    pm_token *stops;        /* tokens that end an answer */
    size_t n_stops;
    pm_defaults defaults; /* of answers */
    pm_constraint_words words;

    const pm_cache_spec *cache; /* the model's */
    int vocab, ctx, step_tokens, snapshot_stride;
    pm_kv_type kv_type;
    pm_precision precision;

    /* Room for one step, used by step.c. */
    pm_token *tokens;       /* [step_tokens] */
    pm_segment *segments;   /* [step_tokens] */
    int *outputs;           /* [step_tokens] */
    pm_session **scheduled; /* [step_tokens] the session of each segment */
    float *logits;          /* [logits_rows, vocab], grown to the largest step seen */
    size_t logits_rows;
    size_t logits_held; /* rows of logits that sessions and snapshots keep */
};

/* Bytes that sessions and snapshots take: rows, states, logits. */
uint64_t pm_engine_held(const pm_engine *engine);

/* What a session of so many tokens takes of that, with `snapshots` of its own. */
uint64_t pm_engine_session_bytes(const pm_engine *engine, size_t tokens, int snapshots);

/* An error unless ids[0..n) are tokens of the model. */
int pm_engine_check_ids(const pm_engine *engine, const pm_token *ids, size_t n, pm_error *err);

#endif
