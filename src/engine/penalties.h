/* Logits changed by what was said before, and by the caller's wishes, before any token is chosen from them:
 *   repetition_penalty   of tokens in the prompt or the answer: logits above 0 are divided by it, others multiplied
 *                        (Keskar et al. 2019, "CTRL"; as Hugging Face's processor does it)
 *   presence_penalty     subtracted from the logits of tokens in the answer
 *   frequency_penalty    subtracted once for each time that the token stands in the answer
 *   bias                 added to the logits of its tokens
 * in this order. Presence and frequency count the answer only, which is what OpenAI documents and vLLM does;
 * llama.cpp and mlx-lm count the last tokens of the prompt too. */
#ifndef PM_PENALTIES_H
#define PM_PENALTIES_H

#include "base/base.h"

typedef struct pm_penalties {
    float repetition, presence, frequency;
    const pm_bias *bias; /* borrowed */
    int n_bias, vocab;
    float *logits;  /* [vocab] the changed ones; NULL when nothing is to be changed */
    int32_t *count; /* [vocab] times in the answer, -1: in the prompt neither; NULL without penalties */
    pm_token *seen; /* [vocab] those with a count of 0 or more, in order of appearance */
    int n_seen;
} pm_penalties;

/* An error that names the option which is out of its range. */
int pm_penalties_check(const pm_sampling *options, pm_error *err);

/* Takes all the memory that is needed later: none where the options change nothing. The options were checked; a bias
 * outside the vocabulary is an error. */
int pm_penalties_init(pm_penalties *penalties, const pm_sampling *options, int vocab, pm_error *err);
void pm_penalties_free(pm_penalties *penalties);

/* Takes note of tokens of the prompt, or of the answer. */
void pm_penalties_see(pm_penalties *penalties, const pm_token *ids, size_t n, bool answer);

/* The logits to choose from: `logits` themselves when nothing is to be changed, else a copy that the next call
 * overwrites. */
const float *pm_penalties_apply(pm_penalties *penalties, const float *logits);

#endif
