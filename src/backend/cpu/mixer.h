/* The inner loops of attention, of recurrent layers and of routing, one table a level. The scalar table defines the
 * bits. Sums called dot or sum follow the rule of cpu.h; every other sum is one chain of fmaf per element, in the
 * stated order. */
#ifndef PM_MIXER_H
#define PM_MIXER_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/math.h"
#include "backend/cpu/memory.h"

/* A causal convolution of `width` neighbouring channels over n tokens. */
typedef struct pm_conv_args {
    const float *const *x; /* [n + kernel - 1] rows, at the first of the channels; oldest first */
    const float *w;        /* [width, kernel] */
    const float *bias;     /* [width] or NULL */
    bool linear;           /* without silu */
    int width, kernel, n;
} pm_conv_args;

/* The delta rule for one value head over n tokens. */
typedef struct pm_delta_args {
    float *state;              /* [key_dim, value_dim] */
    const float *q, *k;        /* [n, key_dim] */
    const float *v;            /* [n, value_dim] */
    const float *decay, *beta; /* [n] */
    float *out;                /* [n, value_dim] */
    float *room;               /* [key_dim, PM_DELTA_STRIP] for the kernel's use */
    int key_dim, value_dim, n;
} pm_delta_args;

enum { PM_DELTA_STRIP = 32 };

/* The state-space recurrence of one head over n tokens. */
typedef struct pm_ssm_args {
    float *state;            /* [state_size, head_dim] */
    const float *b, *c;      /* [n, state_size] */
    const float *x;          /* [n, head_dim] */
    const float *decay, *dt; /* [n] */
    float D;
    float *out; /* [n, head_dim] */
    int state_size, head_dim, n;
} pm_ssm_args;

typedef struct pm_mixer_kernels {
    int columns; /* that `mix` takes best at a time */
    float (*dot)(const float *a, const float *b, int n);
    void (*widen)(const uint16_t *from, float *to, size_t n);  /* f16 to f32 */
    void (*narrow)(const float *from, uint16_t *to, size_t n); /* f32 to f16, nearest even */
    /* A vector from and to PM_KV_Q8: scale = largest magnitude / 127 of a group, element = x * (127 / largest
     * magnitude), nearest even; back, scale * element. Groups that pm_q8_group refuses become zeros. */
    void (*pack)(const float *from, void *to, int n);
    void (*unpack)(const void *from, float *to, int n);

    /* scores[j] = scale * dot(q, k[j]) for n rows of k, `stride` elements apart. */
    void (*scores)(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores);
    /* The same for two queries, `apart` elements apart, at once; their scores are PM_BLOCK_ROWS apart. NULL: they are
     * taken one after the other. */
    void (*scores2)(const float *q, size_t apart, const float *k, size_t stride, int dim, int n, float scale,
                    float *scores);
    /* One block of an online softmax. Scores become exp(score - new max), where hidden ones (-inf) are 0; *sum and what
     * has been accumulated with it are corrected by exp(old max - new max), which is returned. */
    float (*softmax)(float scores[PM_BLOCK_ROWS], float *max, float *sum);
    /* acc = correction * acc + sum of p[j] v[j], ascending j, for n rows of v. */
    void (*mix)(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n);
    /* The same for two, `apart` elements apart, whose p are PM_BLOCK_ROWS apart; or NULL. */
    void (*mix2)(float *acc, size_t apart, const float *correction, const float *p, const float *v, size_t stride,
                 int dim, int n);
    void (*gate)(float *x, const float *gate, int n); /* x *= sigmoid(gate) */
    void (*sqrt_softplus)(const float *x, float *y, int n);
    /* acc = fmaf(weight, x > 0 ? x : 0, acc) */
    void (*add_positive)(float *acc, const float *x, float weight, int n);

    /* y[t][c] = silu(bias[c] + sum of w[c][i] x[t + i][c], ascending i); rows of y are `width` long. */
    void (*conv)(const pm_conv_args *args, float *y);
    /* decay = exp(-exp(A_log) softplus(a)), beta = sigmoid(b) */
    void (*delta_gates)(float A_log, float a, float b, float *decay, float *beta);
    void (*delta)(const pm_delta_args *args);
    /* dt = softplus(raw) within [min, max], decay = exp(-exp(A_log) dt) */
    void (*ssm_gates)(float A_log, float raw, float min, float max, float *decay, float *dt);
    void (*ssm)(const pm_ssm_args *args);
    /* out = x * rsqrt(dot(x, x) / n + eps) * norm * silu(z) */
    void (*gated_norm)(const float *x, const float *norm, const float *z, float eps, int n, float *out);

    /* Folds a token into a running softmax, element by element: state holds maximum, sum and weighted sum, `stride`
     * apart, and g = gate + bias is the score of the value kv. Where g is the new maximum, sum and weighted sum are
     * multiplied by exp(old maximum - g) first. */
    void (*compress)(float *state, size_t stride, const float *kv, const float *gate, const float *bias, int n);
} pm_mixer_kernels;

extern const pm_mixer_kernels pm_mixer_scalar;
extern const pm_mixer_kernels pm_mixer_lanes; /* AVX2, NEON */
#if defined(__x86_64__)
extern const pm_mixer_kernels pm_mixer_avx512;
#endif

/* ---- scalar kernels, one file each ---- */
void pm_scalar_widen(const uint16_t *from, float *to, size_t n);
void pm_scalar_narrow(const float *from, uint16_t *to, size_t n);
void pm_scalar_pack(const float *from, void *to, int n);
void pm_scalar_unpack(const void *from, float *to, int n);
void pm_scalar_scores(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores);
float pm_scalar_softmax(float scores[PM_BLOCK_ROWS], float *max, float *sum);
void pm_scalar_mix(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n);
void pm_scalar_gate(float *x, const float *gate, int n);
void pm_scalar_add_positive(float *acc, const float *x, float weight, int n);
void pm_scalar_conv(const pm_conv_args *args, float *y);
void pm_scalar_delta(const pm_delta_args *args);
void pm_scalar_ssm(const pm_ssm_args *args);
void pm_scalar_gated_norm(const float *x, const float *norm, const float *z, float eps, int n, float *out);
void pm_scalar_compress(float *state, size_t stride, const float *kv, const float *gate, const float *bias, int n);

/* ---- those of lanes.h ---- */
void pm_lanes_widen(const uint16_t *from, float *to, size_t n);
void pm_lanes_narrow(const float *from, uint16_t *to, size_t n);
void pm_lanes_pack(const float *from, void *to, int n);
void pm_lanes_unpack(const void *from, float *to, int n);
void pm_lanes_scores(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores);
float pm_lanes_softmax(float scores[PM_BLOCK_ROWS], float *max, float *sum);
void pm_lanes_mix(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n);
void pm_lanes_gate(float *x, const float *gate, int n);
void pm_lanes_sqrt_softplus(const float *x, float *y, int n);
void pm_lanes_add_positive(float *acc, const float *x, float weight, int n);
void pm_lanes_conv(const pm_conv_args *args, float *y);
void pm_lanes_delta_gates(float A_log, float a, float b, float *decay, float *beta);
void pm_lanes_delta(const pm_delta_args *args);
void pm_lanes_ssm_gates(float A_log, float raw, float min, float max, float *decay, float *dt);
void pm_lanes_ssm(const pm_ssm_args *args);
void pm_lanes_gated_norm(const float *x, const float *norm, const float *z, float eps, int n, float *out);
void pm_lanes_compress(float *state, size_t stride, const float *kv, const float *gate, const float *bias, int n);

/* Bits of the largest magnitude among x and `most`; for non-negative floats their order is that of their bits. */
static inline uint32_t pm_largest_bits(const float *x, int n, uint32_t most)
{
    for (int i = 0; i < n; i++) {
        uint32_t u = pm_bits(x[i]) & 0x7fffffff;
        most = u > most ? u : most;
    }
    return most;
}

/* Magnitudes that PM_KV_Q8 holds: below, and groups of smaller ones become zeros so that 127 / magnitude is finite. */
#define PM_Q8_BITS_END   0x7f000000u /* 2^127 */
#define PM_Q8_BITS_FIRST 0x0d800000u /* 2^-100 */

/* The scale of a group, from the bits of its largest magnitude, and the factor of its elements; false: all are zero. */
static inline bool pm_q8_group(uint32_t largest, float *scale, float *factor)
{
    bool fits = largest >= PM_Q8_BITS_FIRST && largest < PM_Q8_BITS_END;
    *scale = fits ? pm_from_bits(largest) / 127.0f : 0.0f;
    *factor = fits ? 127.0f / pm_from_bits(largest) : 0.0f;
    return fits;
}

/* The same code at every level; where fma is an instruction it is faster. */
static inline void pm_sqrt_softplus(const float *x, float *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = sqrtf(pm_softplus(x[i]));
}

static inline void pm_delta_gates(float A_log, float a, float b, float *decay, float *beta)
{
    *decay = pm_exp(-pm_exp(A_log) * pm_softplus(a));
    *beta = pm_sigmoid(b);
}

static inline void pm_ssm_gates(float A_log, float raw, float min, float max, float *decay, float *dt)
{
    float step = pm_softplus(raw);
    *dt = step < min ? min : step > max ? max : step;
    *decay = pm_exp(-pm_exp(A_log) * *dt);
}

/* ---- shared by the operations ---- */

/* What a causal convolution reads in a segment: the state's kernel - 1 inputs, oldest first, then those of the step. */
typedef struct pm_conv_input {
    const float *state; /* [kernel - 1, channels] */
    const float *x;     /* rows of `channels`, `stride` apart */
    size_t channels, stride;
    int kernel;
} pm_conv_input;

/* Input `t`, t >= 1 - kernel, at channel 0. */
static inline const float *pm_conv_row(const pm_conv_input *in, int64_t t)
{
    return t < 0 ? in->state + (size_t)(t + in->kernel - 1) * in->channels : in->x + (size_t)t * in->stride;
}

/* The state becomes the newest kernel - 1 inputs of n. Ascending, a row is read before it is overwritten. */
static inline void pm_conv_shift(const pm_conv_input *in, int n, float *state)
{
    for (int i = 0; i < in->kernel - 1; i++)
        memmove(state + (size_t)i * in->channels, pm_conv_row(in, (int64_t)n + i + 1 - in->kernel),
                in->channels * sizeof(float));
}

static inline int pm_workers(const pm_cpu *cpu)
{
    return cpu->pool ? pm_pool_threads(cpu->pool) : 1;
}

/* pm_pool_run, or the caller alone where there is no pool. */
static inline void pm_run(pm_cpu *cpu, int64_t n, int64_t grain, pm_pool_fn *fn, void *arg)
{
    if (n < 1)
        return;
    if (cpu->pool)
        pm_pool_run(cpu->pool, n, grain, fn, arg);
    else
        fn(arg, 0, 0, n);
}

/* Work, counted in multiplications and additions, that is worth a worker's while: about 10 microseconds of it. */
enum { PM_PIECE = 100000 };

/* Into how many parts each of `items` pieces of work, a group of `group` heads that share data, is cut so that all
 * workers have something to do. `cost` is that of all the work. */
static inline int pm_group_parts(const pm_cpu *cpu, int64_t items, int group, int64_t cost)
{
    int workers = pm_workers(cpu);
    if (items >= workers || cost < 2 * PM_PIECE)
        return 1;
    int64_t parts = (workers + items - 1) / items;
    return parts < group ? (int)parts : group;
}

/* How many indices make a piece when one of them costs `cost`. */
static inline int64_t pm_mixer_grain(int64_t cost)
{
    return cost >= PM_PIECE ? 1 : PM_PIECE / (cost > 0 ? cost : 1);
}

/* Bytes rounded up to whole cache lines, so that workers do not share one. */
static inline size_t pm_line(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Takes `bytes`, rounded up likewise, off the memory at `base` from *at on; with `base` NULL it only counts. */
static inline void *pm_take(char *base, size_t *at, size_t bytes)
{
    char *p = base ? base + *at : NULL;
    *at += pm_line(bytes);
    return p;
}

#endif
