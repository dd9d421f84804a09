#include "engine/generation.h"

#include <stdlib.h>

enum { TOP_LOGPROBS_MAX = 1000 };

int pm_generation_init(pm_generation *generation, const pm_generation_model *model, const pm_generate_options *options,
                       size_t limit, pm_error *err)
{
    int n_top = options->logprobs ? options->top_logprobs : 0;
    if (options->top_logprobs < 0 || options->top_logprobs > TOP_LOGPROBS_MAX)
        return pm_fail(err, PM_ERR_INVALID, "top_logprobs is %d, not between 0 and %d", options->top_logprobs,
                       TOP_LOGPROBS_MAX);
    if (n_top > model->vocab)
        return pm_fail(err, PM_ERR_INVALID, "top_logprobs is %d, more than the vocabulary of %d", n_top, model->vocab);
    pm_generation made = {.model = *model,
                          .ignore_eos = options->ignore_eos,
                          .record = options->logprobs,
                          .n_top = n_top,
                          .limit = limit};
    int status = pm_stop_init(&made.stop, options->stop, options->n_stop, err);
    if (status == PM_OK)
        status = pm_sampler_init(&made.sampler, &options->sampling, model->vocab, err);
    if (status == PM_OK && pm_buf_reserve(&made.text, 0) != PM_OK)
        status = pm_fail_memory(err);
    if (status == PM_OK)
        status = pm_detok_init(&made.detok, model->tokenizer, false, err);
    if (status != PM_OK) {
        pm_generation_free(&made);
        return status;
    }
    made.sampler.guarded = model->stops;
    made.sampler.n_guarded = model->n_stops;
    made.sampler.newline = model->newline;
    *generation = made;
    return PM_OK;
}

int pm_generation_constrain(pm_generation *generation, pm_constraint *constraint, bool reasoning, pm_error *err)
{
    if (generation->ignore_eos)
        return pm_fail(err, PM_ERR_INVALID, "ignore_eos cannot go with a constraint, which says where the answer ends");
    if (constraint->masks.vocabulary->vocab != generation->model.vocab)
        return pm_fail(err, PM_ERR_INVALID, "the constraint is one of another model");
    int status = pm_sampler_use_masks(&generation->sampler, err);
    if (status == PM_OK)
        status = pm_guide_init(&generation->guide, &constraint->masks,
                               reasoning ? constraint->reasoning : constraint->start, err);
    generation->guided = status == PM_OK;
    return status;
}

void pm_generation_prompt(pm_generation *generation, const pm_token *ids, size_t n)
{
    pm_penalties_see(&generation->sampler.penalties, ids, n, false);
}

void pm_generation_free(pm_generation *generation)
{
    pm_sampler_free(&generation->sampler);
    if (generation->guided)
        pm_guide_free(&generation->guide);
    pm_stop_free(&generation->stop);
    pm_detok_free(&generation->detok);
    pm_buf_free(&generation->text);
    free(generation->ids);
    free(generation->logprobs);
    free(generation->top);
    *generation = (pm_generation){0};
}

/* Room for one more token in every list. */
static int reserve(pm_generation *generation, pm_error *err)
{
    size_t need = generation->n + 1, row;
    if (pm_grow((void **)&generation->ids, &generation->ids_cap, need, sizeof(pm_token)) != PM_OK)
        return pm_fail_memory(err);
    if (generation->record &&
        pm_grow((void **)&generation->logprobs, &generation->logprobs_cap, need, sizeof(float)) != PM_OK)
        return pm_fail_memory(err);
    if (generation->n_top && (!pm_mul((size_t)generation->n_top, sizeof(pm_logprob), &row) ||
                              pm_grow((void **)&generation->top, &generation->top_cap, need, row) != PM_OK))
        return pm_fail_memory(err);
    return PM_OK;
}

/* Looks for stop strings in what was added since `seen`; one that is found ends the answer. */
static void scan(pm_generation *generation, size_t seen)
{
    pm_buf *text = &generation->text;
    if (pm_stop_scan(&generation->stop, text->data, seen, text->len, &generation->final)) {
        text->len = generation->final;
        text->data[text->len] = 0;
        generation->done = true;
        generation->finish = PM_FINISH_STOP;
    }
}

int pm_generation_end(pm_generation *generation, pm_finish finish, pm_error *err)
{
    if (generation->done)
        return PM_OK;
    size_t seen = generation->text.len;
    int status = pm_detok_finish(&generation->detok, &generation->text, err);
    if (status != PM_OK)
        return status;
    scan(generation, seen);
    if (generation->done)
        return PM_OK;
    generation->final = generation->text.len;
    generation->done = true;
    generation->finish = finish;
    return PM_OK;
}

static bool is_among(const pm_token *tokens, size_t n, pm_token id)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] == id)
            return true;
    return false;
}

/* Lets the tokens come that end the answer. */
static void allow_stops(pm_generation *generation)
{
    const pm_generation_model *model = &generation->model;
    for (size_t i = 0; i < model->n_stops; i++)
        if (model->stops[i] >= 0 && model->stops[i] < model->vocab)
            generation->guide.bits[model->stops[i] / 64] |= UINT64_C(1) << (model->stops[i] % 64);
}

static bool allows_any(const pm_generation *generation)
{
    for (int i = 0; i < (generation->model.vocab + 63) / 64; i++)
        if (generation->guide.bits[i])
            return true;
    return false;
}

/* Chooses a token that the constraint allows; none, and *id is -1, when the answer is complete and has no way to say
 * so. A token that turns out to be refused is chosen from no more. */
static int choose_guided(pm_generation *generation, const float *logits, pm_token *id, pm_error *err)
{
    pm_guide *guide = &generation->guide;
    int status = pm_guide_allow(guide, err);
    if (status == PM_OK && guide->now.done)
        allow_stops(generation);
    for (bool refused = true; status == PM_OK && refused;) {
        *id = -1;
        if (!allows_any(generation))
            return guide->now.done ? PM_OK
                                   : pm_fail(err, PM_ERR_UNSUPPORTED,
                                             "no token of the vocabulary goes on with what the schema asks for");
        status = pm_sampler_choose(&generation->sampler, logits, guide->bits, id, err);
        refused = false;
        if (status == PM_OK && !is_among(generation->model.stops, generation->model.n_stops, *id))
            status = pm_guide_take(guide, *id, &refused, err);
        if (refused)
            guide->bits[*id / 64] &= ~(UINT64_C(1) << (*id % 64));
    }
    if (status == PM_OK)
        pm_penalties_see(&generation->sampler.penalties, id, 1, true);
    return status;
}

int pm_generation_next(pm_generation *generation, const float *logits, pm_token *id, pm_error *err)
{
    size_t n = generation->n, seen = generation->text.len;
    int status = reserve(generation, err);
    if (status == PM_OK)
        status = generation->guided ? choose_guided(generation, logits, id, err)
                                    : pm_sampler_pick(&generation->sampler, logits, id, err);
    if (status != PM_OK)
        return status;
    if (*id < 0)
        return pm_generation_end(generation, PM_FINISH_STOP, err);
    if (generation->record) {
        pm_logprob *top = generation->n_top ? generation->top + n * (size_t)generation->n_top : NULL;
        pm_sampler_logprobs(&generation->sampler, logits, *id, &generation->logprobs[n], top, generation->n_top);
    }
    generation->ids[generation->n++] = *id;
    if (!generation->ignore_eos && is_among(generation->model.stops, generation->model.n_stops, *id))
        return pm_generation_end(generation, PM_FINISH_STOP, err);
    /* Logits may be wider than the tokenizer's vocabulary; such a token has no text. */
    if (*id < pm_tokenizer_vocab(generation->model.tokenizer)) {
        generation->detok.special = is_among(generation->model.markers, generation->model.n_markers, *id);
        status = pm_detok_push(&generation->detok, *id, &generation->text, err);
        if (status != PM_OK)
            return status;
        scan(generation, seen);
    }
    if (!generation->done && generation->n >= generation->limit)
        return pm_generation_end(generation, PM_FINISH_LENGTH, err);
    return PM_OK;
}

void pm_generation_result(pm_generation *generation, pm_result *out)
{
    *out = (pm_result){.text = generation->text.data,
                       .len = generation->text.len,
                       .ids = generation->ids,
                       .n = generation->n,
                       .logprobs = generation->logprobs,
                       .top = generation->top,
                       .finish = generation->finish,
                       .stop = generation->stop.found};
    generation->text = (pm_buf){0};
    generation->ids = NULL;
    generation->logprobs = NULL;
    generation->top = NULL;
}

void pm_generation_tell(const pm_generation *generation, const pm_generate_options *options)
{
    size_t last = generation->n - 1;
    if (options->on_token)
        options->on_token(options->user, generation->ids[last], generation->record ? generation->logprobs[last] : 0,
                          generation->n_top ? generation->top + last * (size_t)generation->n_top : NULL);
}

const char *pm_generation_take(pm_generation *generation, size_t *len)
{
    const char *text = generation->text.data + generation->taken;
    *len = generation->final - generation->taken;
    generation->taken = generation->final;
    return text;
}
