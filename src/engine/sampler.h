/* Choosing a token from logits, after penalties and biases (penalties.h).
 *
 * Sampling: the candidates are ordered by (logit descending, id ascending). Each filter keeps a beginning of that
 * order, as Hugging Face's processors do: top-k the first k; top-p the fewest whose share of what top-k left is at
 * least p; min-p those at least min_p times as likely as the first. XTC (Weidmann 2024, "Exclude Top Choices"), last as
 * its author wants it, drops a beginning instead: when a first number drawn from [0, 1) is less than xtc_probability,
 * of the candidates whose share of what is left is at least xtc_threshold only the last stays. As in his version
 * nothing is dropped when a guarded token (a newline, the end of the answer) would be. One more number u in [0, 1) is
 * drawn per token, and the token is the one in that order where the running sum of the weights that are left first
 * exceeds u times their total. Tokens that a mask rules out are none, as those with a logit of minus infinity.
 *
 * Weights are exp((logit - highest) / temperature) in units of 2^-40, cut to integers, so sums do not depend on their
 * order, and the same logits and seed give the same token on every machine. A token less than 2^-40 times as likely as
 * the first is never drawn. */
#ifndef PM_SAMPLER_H
#define PM_SAMPLER_H

#include "engine/penalties.h"

typedef struct pm_candidate {
    uint64_t key;    /* ascending keys are the order above; the low half is the id */
    uint64_t weight; /* 1 until weighed */
} pm_candidate;

typedef struct pm_sampler {
    pm_sampling options;
    uint64_t random[4];       /* xoshiro256** (Blackman and Vigna 2018), seeded through splitmix64 */
    pm_candidate *candidates; /* [vocab] */
    int vocab;
    pm_penalties penalties;
    const pm_token *guarded; /* [n_guarded] XTC leaves none of these out; borrowed */
    size_t n_guarded;
    pm_token newline; /* nor this one; -1: none */
    float *masked;    /* [vocab] logits of what a mask allows; NULL until there is one */
} pm_sampler;

/* An error that names the option which is out of its range. */
int pm_sampling_check(const pm_sampling *options, pm_error *err);

/* Checks the options and takes all the memory that sampling will need. */
int pm_sampler_init(pm_sampler *sampler, const pm_sampling *options, int vocab, pm_error *err);
void pm_sampler_free(pm_sampler *sampler);

/* Takes the memory that masks will need. */
int pm_sampler_use_masks(pm_sampler *sampler, pm_error *err);

/* Chooses a token. `mask` has a bit for each token that may be chosen; NULL: all may. Minus infinity rules a token out;
 * other values that are not finite are PM_ERR_NUMERIC, and so is a row that rules out all. */
int pm_sampler_choose(pm_sampler *sampler, const float *logits, const uint64_t *mask, pm_token *id, pm_error *err);

/* Chooses among all and, when penalties want to know, takes note of it. */
int pm_sampler_pick(pm_sampler *sampler, const float *logits, pm_token *id, pm_error *err);

/* Log-probabilities of the raw logits: of `id`, and of the n_top <= vocab best in order. */
void pm_sampler_logprobs(pm_sampler *sampler, const float *logits, pm_token id, float *logprob, pm_logprob *top,
                         int n_top);

void pm_random_seed(uint64_t state[4], uint64_t seed);
uint64_t pm_random_next(uint64_t state[4]);

#endif
