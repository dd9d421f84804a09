#include "engine/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Values are handled in blocks of a fixed size, which compilers turn into vector code. */
enum { BLOCK = 64, WEIGHT_BITS = 40 };

/* ---- random numbers ---- */

/* splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void pm_random_seed(uint64_t state[4], uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        state[i] = splitmix(&seed);
}

static uint64_t rotate(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t pm_random_next(uint64_t state[4])
{
    uint64_t result = rotate(state[1] * 5, 7) * 9, t = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= t;
    state[3] = rotate(state[3], 45);
    return result;
}

/* ---- weights ---- */

/* x[i] = exp(x[i]) for x <= 0; below -87, where results leave the normal range, exp(-87), which is nothing beside the
 * exp(0) that is always among them. Argument reduction and polynomial of Cephes' expf (Moshier 1989); relative error
 * below 2e-7. Not libm's, whose last bit differs between processors. */
static void exp_block(float x[BLOCK])
{
    const float magic = 12582912.0f;              /* 1.5 * 2^23: adding it rounds to an integer */
    const int32_t least = INT32_MIN + 0x42ae0000; /* the bits of -87 */
    float scale[BLOCK];
    int32_t bits[BLOCK];
    /* max(x, -87), on the bits: comparisons of floats may trap and so keep compilers from making vectors of a loop. */
    memcpy(bits, x, sizeof(bits));
    for (int i = 0; i < BLOCK; i++) {
        int32_t b = bits[i] | INT32_MIN;
        bits[i] = b < least ? b : least;
    }
    memcpy(x, bits, sizeof(bits));
    for (int i = 0; i < BLOCK; i++) {
        float v = x[i], n = (v * 1.44269504088896341f + magic) - magic;
        float r = v - n * 0.693359375f + n * 2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        x[i] = p * r * r + r + 1.0f;
        bits[i] = (int32_t)(n + 127.0f) * (1 << 23); /* of the float 2^n */
    }
    memcpy(scale, bits, sizeof(scale));
    for (int i = 0; i < BLOCK; i++)
        x[i] *= scale[i];
}

static pm_token candidate_id(const pm_candidate *candidate)
{
    return (pm_token)(uint32_t)candidate->key;
}

/* Integers whose ascending order is the descending order of floats. Both zeros are one value. */
static uint64_t candidate_key(float logit, int id)
{
    uint32_t bits;
    float value = logit + 0.0f;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~ascending << 32 | (uint32_t)id;
}

static void weigh(pm_candidate *c, size_t n, const float *logits, float highest, float temperature)
{
    float x[BLOCK];
    for (size_t first = 0; first < n; first += BLOCK) {
        size_t count = n - first < BLOCK ? n - first : BLOCK;
        for (size_t i = 0; i < BLOCK; i++)
            x[i] = i < count ? (logits[candidate_id(&c[first + i])] - highest) / temperature : -INFINITY;
        exp_block(x);
        for (size_t i = 0; i < count; i++)
            c[first + i].weight = (uint64_t)(int64_t)(x[i] * (float)(UINT64_C(1) << WEIGHT_BITS));
    }
}

static uint64_t total_weight(const pm_candidate *c, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += c[i].weight;
    return sum;
}

/* ---- order without sorting ---- */

static void swap_candidates(pm_candidate *a, pm_candidate *b)
{
    pm_candidate t = *a;
    *a = *b;
    *b = t;
}

static size_t middle(const pm_candidate *c, size_t i, size_t j, size_t k)
{
    if (c[i].key > c[j].key) {
        size_t t = i;
        i = j;
        j = t;
    }
    return c[k].key < c[i].key ? i : c[k].key > c[j].key ? j : k;
}

/* Puts the candidates before some pivot in front of it; gives the pivot's place and the weight before it. */
static size_t split(pm_candidate *c, size_t n, uint64_t *weight)
{
    size_t pivot = n / 2, step = n / 8, place = 0;
    if (n >= 64)
        pivot = middle(c, middle(c, 0, step, 2 * step), middle(c, 3 * step, 4 * step, 5 * step),
                       middle(c, 6 * step, 7 * step, n - 1));
    swap_candidates(&c[pivot], &c[n - 1]);
    uint64_t key = c[n - 1].key, sum = 0;
    for (size_t i = 0; i + 1 < n; i++) { /* no branch that depends on the data */
        pm_candidate x = c[i];
        uint64_t before = x.key < key;
        c[i] = c[place];
        c[place] = x;
        place += before;
        sum += x.weight & (0 - before);
    }
    swap_candidates(&c[place], &c[n - 1]);
    *weight = sum;
    return place;
}

/* Moves the shortest beginning of the order whose weight exceeds `target` to the front, its last candidate at its end,
 * and gives its length. The weight of all must exceed the target. */
static size_t prefix(pm_candidate *c, size_t n, uint64_t target)
{
    size_t first = 0, end = n;
    while (end - first > 1) {
        uint64_t weight;
        size_t place = split(c + first, end - first, &weight), pivot = first + place;
        if (weight > target) {
            end = pivot;
        } else if (weight + c[pivot].weight > target) {
            return pivot + 1;
        } else {
            target -= weight + c[pivot].weight;
            first = pivot + 1;
        }
    }
    return end;
}

static void sort(pm_candidate *c, size_t n)
{
    while (n > 1) {
        uint64_t weight;
        size_t place = split(c, n, &weight);
        sort(c, place);
        c += place + 1;
        n -= place + 1;
    }
}

/* ---- the sampler ---- */

int pm_sampling_check(const pm_sampling *options, pm_error *err)
{
    if (!(options->temperature >= 0 && options->temperature <= FLT_MAX))
        return pm_fail(err, PM_ERR_INVALID, "temperature is %g, not a number of at least 0",
                       (double)options->temperature);
    if (options->top_k < 0)
        return pm_fail(err, PM_ERR_INVALID, "top_k is %d, less than 0", options->top_k);
    /* Greedy needs no filters: a zeroed struct is greedy. */
    bool unused = options->temperature == 0 && options->top_p == 0;
    if (!unused && !(options->top_p > 0 && options->top_p <= 1))
        return pm_fail(err, PM_ERR_INVALID, "top_p is %g, not above 0 and at most 1", (double)options->top_p);
    const struct {
        const char *name;
        float value;
    } shares[] = {{"min_p", options->min_p},
                  {"xtc_probability", options->xtc_probability},
                  {"xtc_threshold", options->xtc_threshold}};
    for (size_t i = 0; i < PM_COUNT(shares); i++)
        if (!(shares[i].value >= 0 && shares[i].value <= 1))
            return pm_fail(err, PM_ERR_INVALID, "%s is %g, not between 0 and 1", shares[i].name,
                           (double)shares[i].value);
    return pm_penalties_check(options, err);
}

int pm_sampler_init(pm_sampler *sampler, const pm_sampling *options, int vocab, pm_error *err)
{
    int status = pm_sampling_check(options, err);
    if (status != PM_OK)
        return status;
    pm_sampler made = {.options = *options, .vocab = vocab, .newline = -1};
    status = pm_penalties_init(&made.penalties, options, vocab, err);
    if (status != PM_OK)
        return status;
    made.candidates = calloc((size_t)vocab, sizeof(*made.candidates));
    if (!made.candidates) {
        pm_sampler_free(&made);
        return pm_fail_memory(err);
    }
    pm_random_seed(made.random, options->seed);
    *sampler = made;
    return PM_OK;
}

void pm_sampler_free(pm_sampler *sampler)
{
    free(sampler->candidates);
    free(sampler->masked);
    pm_penalties_free(&sampler->penalties);
    *sampler = (pm_sampler){0};
}

/* The best token, the lowest id of equals; -1 when a value is not a number or plus infinity, or none is left. Floats
 * are compared as integers that have their order. */
static pm_token best(const float *logits, int vocab)
{
    const int32_t infinity = 0x7f800000, minus_infinity = ~infinity;
    int32_t most = INT32_MIN, least = INT32_MAX, bits[BLOCK];
    float x[BLOCK];
    for (int first = 0; first < vocab; first += BLOCK) {
        int count = vocab - first < BLOCK ? vocab - first : BLOCK;
        memcpy(x, logits + first, (size_t)count * sizeof(*x));
        for (int i = count; i < BLOCK; i++)
            x[i] = -INFINITY;
        memcpy(bits, x, sizeof(bits));
        for (int i = 0; i < BLOCK; i++) {
            int32_t order = bits[i] ^ (int32_t)((uint32_t)(bits[i] >> 31) >> 1);
            most = order > most ? order : most;
            least = order < least ? order : least;
        }
    }
    if (most >= infinity || most <= minus_infinity || least < minus_infinity)
        return -1;
    most = most < 0 ? most ^ INT32_MAX : most;
    memcpy(x, &most, sizeof(most));
    pm_token id = 0;
    while (!(logits[id] == x[0])) /* zeros of both signs are equal */
        id++;
    return id;
}

static void list_all(pm_sampler *sampler, const float *logits)
{
    for (int i = 0; i < sampler->vocab; i++)
        sampler->candidates[i] = (pm_candidate){candidate_key(logits[i], i), 1};
}

/* Those at least min_p times as likely as the best, in any order; gives their number. */
static size_t filter_min_p(pm_candidate *c, size_t n, float min_p)
{
    uint64_t least = (uint64_t)(int64_t)(min_p * (float)(UINT64_C(1) << WEIGHT_BITS));
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (c[i].weight >= least)
            c[kept++] = c[i];
    return kept;
}

/* A number of 53 bits: u * 2^53, u in [0, 1). */
static uint64_t draw(pm_sampler *sampler)
{
    return pm_random_next(sampler->random) >> 11;
}

static bool is_guarded(const pm_sampler *sampler, pm_token id)
{
    for (size_t i = 0; i < sampler->n_guarded; i++)
        if (sampler->guarded[i] == id)
            return true;
    return id == sampler->newline;
}

/* Leaves out the top choices but the last of them; gives the number of candidates left. */
static size_t exclude_top(const pm_sampler *sampler, pm_candidate *c, size_t n)
{
    double least = (double)sampler->options.xtc_threshold * (double)total_weight(c, n);
    size_t kept = 0;
    uint64_t last = 0;
    for (size_t i = 0; i < n; i++)
        if ((double)c[i].weight >= least && c[i].key > last)
            last = c[i].key;
    /* Whoever comes before `last` in the order is a top choice. */
    for (size_t i = 0; i < n; i++)
        if (c[i].key < last && is_guarded(sampler, candidate_id(&c[i])))
            return n;
    for (size_t i = 0; i < n; i++)
        if (c[i].key >= last)
            c[kept++] = c[i];
    return kept;
}

/* Draws from the distribution that temperature and filters make; `highest` is the largest of the logits. */
static pm_token sample(pm_sampler *sampler, const float *logits, float highest)
{
    const pm_sampling *options = &sampler->options;
    pm_candidate *c = sampler->candidates;
    size_t n = (size_t)sampler->vocab;
    list_all(sampler, logits);
    if (options->top_k > 0 && (size_t)options->top_k < n)
        n = prefix(c, n, (uint64_t)options->top_k - 1);
    weigh(c, n, logits, highest, options->temperature);
    if (options->top_p < 1) {
        double wanted = ceil((double)options->top_p * (double)total_weight(c, n));
        n = prefix(c, n, wanted > 1 ? (uint64_t)wanted - 1 : 0);
    }
    if (options->min_p > 0)
        n = filter_min_p(c, n, options->min_p);
    if (options->xtc_probability > 0 && (double)draw(sampler) * 0x1p-53 < (double)options->xtc_probability)
        n = exclude_top(sampler, c, n);
    n = prefix(c, n, (uint64_t)(((unsigned __int128)draw(sampler) * total_weight(c, n)) >> 53));
    return candidate_id(&c[n - 1]);
}

int pm_sampler_use_masks(pm_sampler *sampler, pm_error *err)
{
    sampler->masked = calloc((size_t)sampler->vocab, sizeof(*sampler->masked));
    return sampler->masked ? PM_OK : pm_fail_memory(err);
}

/* The logits of the tokens that the mask allows. */
static const float *apply_mask(pm_sampler *sampler, const float *logits, const uint64_t *mask)
{
    for (int i = 0; i < sampler->vocab; i++)
        sampler->masked[i] = mask[i / 64] >> (i % 64) & 1 ? logits[i] : -INFINITY;
    return sampler->masked;
}

int pm_sampler_choose(pm_sampler *sampler, const float *logits, const uint64_t *mask, pm_token *id, pm_error *err)
{
    logits = pm_penalties_apply(&sampler->penalties, logits);
    if (mask)
        logits = apply_mask(sampler, logits, mask);
    pm_token greedy = best(logits, sampler->vocab);
    if (greedy < 0)
        return pm_fail(err, PM_ERR_NUMERIC, "the logits hold a value that is not finite");
    *id = sampler->options.temperature == 0 ? greedy : sample(sampler, logits, logits[greedy]);
    return PM_OK;
}

int pm_sampler_pick(pm_sampler *sampler, const float *logits, pm_token *id, pm_error *err)
{
    int status = pm_sampler_choose(sampler, logits, NULL, id, err);
    if (status == PM_OK)
        pm_penalties_see(&sampler->penalties, id, 1, true);
    return status;
}

void pm_sampler_logprobs(pm_sampler *sampler, const float *logits, pm_token id, float *logprob, pm_logprob *top,
                         int n_top)
{
    float x[BLOCK], highest = logits[best(logits, sampler->vocab)];
    double sum = 0;
    for (int first = 0; first < sampler->vocab; first += BLOCK) {
        for (int i = 0; i < BLOCK; i++)
            x[i] = first + i < sampler->vocab ? logits[first + i] - highest : -INFINITY;
        exp_block(x);
        for (int i = 0; i < BLOCK; i++)
            sum += (double)x[i];
    }
    double log_sum = log(sum) + (double)highest;
    *logprob = (float)((double)logits[id] - log_sum);
    if (n_top <= 0)
        return;
    list_all(sampler, logits);
    prefix(sampler->candidates, (size_t)sampler->vocab, (uint64_t)n_top - 1);
    sort(sampler->candidates, (size_t)n_top);
    for (int i = 0; i < n_top; i++) {
        pm_token best_id = candidate_id(&sampler->candidates[i]);
        top[i] = (pm_logprob){best_id, (float)((double)logits[best_id] - log_sum)};
    }
}
