/* An answer in the making: fed with logits, it samples a token, decodes it, watches for the end, and says what text has
 * become final. pm_generate loops over it; a server keeps one per request. */
#ifndef PM_GENERATION_H
#define PM_GENERATION_H

#include "engine/constraint.h"
#include "engine/sampler.h"
#include "engine/stop.h"
#include "text/tokenizer.h"

/* What the model brings to every answer. */
typedef struct pm_generation_model {
    const pm_tokenizer *tokenizer;
    const pm_token *stops; /* tokens that end an answer */
    size_t n_stops;
    int vocab;               /* width of the logits */
    pm_token newline;        /* as a token of its own, -1: none */
    const pm_token *markers; /* special tokens that are kept in the text */
    size_t n_markers;
} pm_generation_model;

typedef struct pm_generation {
    pm_generation_model model;
    bool ignore_eos, record, done;
    int n_top;
    size_t limit; /* tokens at most */
    pm_finish finish;
    pm_sampler sampler;
    bool guided;
    pm_guide guide; /* when guided */
    pm_stop stop;
    pm_detok detok;
    pm_buf text;   /* all that was decoded; after the end, the answer */
    size_t final;  /* bytes of it that can change no more */
    size_t taken;  /* bytes of it that pm_generation_take gave out */
    pm_token *ids; /* sampled, the stop token included */
    size_t n, ids_cap, logprobs_cap, top_cap;
    float *logprobs; /* [n] when recorded */
    pm_logprob *top; /* [n, n_top] when recorded */
} pm_generation;

/* Checks the options and begins an answer of at most `limit` >= 1 tokens; max_tokens is the caller's business. Stop
 * strings and biases must stay until pm_generation_free. */
int pm_generation_init(pm_generation *generation, const pm_generation_model *model, const pm_generate_options *options,
                       size_t limit, pm_error *err);
/* Holds the answer to a constraint; `reasoning` as in pm_prompt. */
int pm_generation_constrain(pm_generation *generation, pm_constraint *constraint, bool reasoning, pm_error *err);
/* Tells penalties what stands before the answer. */
void pm_generation_prompt(pm_generation *generation, const pm_token *ids, size_t n);

void pm_generation_free(pm_generation *generation);

/* Takes the next token out of its logits; -1 where a constraint lets the answer end without one. Sets done and finish
 * when that ends the answer. */
int pm_generation_next(pm_generation *generation, const float *logits, pm_token *id, pm_error *err);

/* Ends the answer from outside. Text that was held back is final then, except where it turns out to be a stop string:
 * then that is the reason. */
int pm_generation_end(pm_generation *generation, pm_finish finish, pm_error *err);

/* Hands the answer over: text, tokens, probabilities and the reason of its end; the rest of *out is zero. */
void pm_generation_result(pm_generation *generation, pm_result *out);

/* Tells options->on_token of the last token. */
void pm_generation_tell(const pm_generation *generation, const pm_generate_options *options);

/* The text that has become final since the last call; valid until the next call on the generation. */
const char *pm_generation_take(pm_generation *generation, size_t *len);

/* ---- generate.c ---- */

/* How an answer is made when the caller leaves it to the model. */
void pm_engine_answer_defaults(const pm_engine *engine, pm_generate_options *out);

/* Begins the answer to a prompt. Both together take `room` tokens at most, but one token is always sampled: there are
 * logits for it even when the prompt alone fills the room. */
int pm_engine_answer(const pm_engine *engine, const pm_prompt *prompt, const pm_generate_options *options, size_t room,
                     pm_generation *out, pm_error *err);

#endif
