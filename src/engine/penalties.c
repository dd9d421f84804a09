#include "engine/penalties.h"

#include <stdlib.h>
#include <string.h>

/* Wide enough for every use; narrow enough that no logit of a model overflows. */
#define REPETITION_MIN 0.01f
#define REPETITION_MAX 100.0
#define BIAS_MAX       100.0

static bool within(float value, double min, double max)
{
    return (double)value >= min && (double)value <= max;
}

int pm_penalties_check(const pm_sampling *options, pm_error *err)
{
    if (options->repetition_penalty != 0 &&
        !within(options->repetition_penalty, (double)REPETITION_MIN, REPETITION_MAX))
        return pm_fail(err, PM_ERR_INVALID, "repetition_penalty is %g, not between %g and %g",
                       (double)options->repetition_penalty, (double)REPETITION_MIN, REPETITION_MAX);
    if (!within(options->presence_penalty, -2, 2))
        return pm_fail(err, PM_ERR_INVALID, "presence_penalty is %g, not between -2 and 2",
                       (double)options->presence_penalty);
    if (!within(options->frequency_penalty, -2, 2))
        return pm_fail(err, PM_ERR_INVALID, "frequency_penalty is %g, not between -2 and 2",
                       (double)options->frequency_penalty);
    if (options->n_bias < 0 || (options->n_bias > 0 && !options->bias))
        return pm_fail(err, PM_ERR_INVALID, "the list of logit biases is missing");
    for (int i = 0; i < options->n_bias; i++)
        if (!within(options->bias[i].bias, -BIAS_MAX, BIAS_MAX))
            return pm_fail(err, PM_ERR_INVALID, "the logit bias of token %d is %g, not between %g and %g",
                           (int)options->bias[i].id, (double)options->bias[i].bias, -BIAS_MAX, BIAS_MAX);
    return PM_OK;
}

int pm_penalties_init(pm_penalties *penalties, const pm_sampling *options, int vocab, pm_error *err)
{
    pm_penalties made = {.repetition = options->repetition_penalty != 0 ? options->repetition_penalty : 1,
                         .presence = options->presence_penalty,
                         .frequency = options->frequency_penalty,
                         .bias = options->bias,
                         .n_bias = options->n_bias,
                         .vocab = vocab};
    for (int i = 0; i < made.n_bias; i++)
        if (made.bias[i].id < 0 || made.bias[i].id >= vocab)
            return pm_fail(err, PM_ERR_INVALID, "the logit bias is for token %d, outside the vocabulary of %d",
                           (int)made.bias[i].id, vocab);
    bool counts = made.repetition != 1 || made.presence != 0 || made.frequency != 0, ok = true;
    size_t n = (size_t)vocab;
    if (counts || made.n_bias)
        ok = (made.logits = malloc(n * sizeof(*made.logits))) != NULL;
    if (ok && counts) {
        made.count = malloc(n * sizeof(*made.count));
        made.seen = malloc(n * sizeof(*made.seen));
        ok = made.count && made.seen;
    }
    if (!ok) {
        pm_penalties_free(&made);
        return pm_fail_memory(err);
    }
    for (int i = 0; made.count && i < vocab; i++)
        made.count[i] = -1;
    *penalties = made;
    return PM_OK;
}

void pm_penalties_free(pm_penalties *penalties)
{
    free(penalties->logits);
    free(penalties->count);
    free(penalties->seen);
    *penalties = (pm_penalties){0};
}

void pm_penalties_see(pm_penalties *penalties, const pm_token *ids, size_t n, bool answer)
{
    for (size_t i = 0; penalties->count && i < n; i++) {
        if (ids[i] < 0 || ids[i] >= penalties->vocab)
            continue;
        int32_t *count = &penalties->count[ids[i]];
        if (*count < 0) {
            penalties->seen[penalties->n_seen++] = ids[i];
            *count = 0;
        }
        *count += answer && *count < INT32_MAX;
    }
}

const float *pm_penalties_apply(pm_penalties *penalties, const float *logits)
{
    float *changed = penalties->logits;
    if (!changed)
        return logits;
    memcpy(changed, logits, (size_t)penalties->vocab * sizeof(*changed));
    for (int i = 0; i < penalties->n_seen; i++) {
        float *logit = &changed[penalties->seen[i]];
        int32_t count = penalties->count[penalties->seen[i]];
        *logit = *logit > 0 ? *logit / penalties->repetition : *logit * penalties->repetition;
        if (count > 0)
            *logit -= penalties->presence + (float)count * penalties->frequency;
    }
    for (int i = 0; i < penalties->n_bias; i++)
        changed[penalties->bias[i].id] += penalties->bias[i].bias;
    return changed;
}
