/* The scalar kernels of delta.c eight lanes at a time, with the same bits. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/mixer.h"

/* Channels [c, c + 8), of which those in `mask` exist. The taps of a channel lie side by side, hence the gather. */
static void conv_channels(const pm_conv_args *args, int c, pm_mask mask, float *y)
{
    int kernel = args->kernel;
    const float *w = args->w + (size_t)c * (size_t)kernel;
    const pm_floats bias = args->bias ? pm_load_part8(args->bias + c, mask) : pm_zero8();
    enum { AHEAD = 8 }; /* taps in registers; a longer kernel gathers the rest again for each token */
    pm_floats tap[AHEAD];
    int kept = kernel < AHEAD ? kernel : AHEAD;
    for (int i = 0; i < kept; i++)
        tap[i] = pm_gather_part8(w + i, kernel, mask);
    for (int t = 0; t < args->n; t++) {
        pm_floats sum = bias;
        for (int i = 0; i < kept; i++)
            sum = pm_fma8(tap[i], pm_load_part8(args->x[t + i] + c, mask), sum);
        for (int i = kept; i < kernel; i++)
            sum = pm_fma8(pm_gather_part8(w + i, kernel, mask), pm_load_part8(args->x[t + i] + c, mask), sum);
        pm_store_part8(y + (size_t)t * (size_t)args->width + c, mask, args->linear ? sum : pm_silu8(sum));
    }
}

void pm_lanes_conv(const pm_conv_args *args, float *y)
{
    for (int c = 0; c < args->width; c += 8)
        conv_channels(args, c, pm_mask8(args->width - c), y);
}

void pm_lanes_delta_gates(float A_log, float a, float b, float *decay, float *beta)
{
    pm_delta_gates(A_log, a, b, decay, beta);
}

#define LOAD(p)     (vectors == 1 ? pm_load_part8(p, mask) : pm_load8(p))
#define STORE(p, x) (vectors == 1 ? pm_store_part8(p, mask, x) : pm_store8(p, x))

/* Columns [d, d + 8 * vectors) of the state over all tokens. Row i of these columns is at strip + i * stride. With one
 * vector, `mask` says which of its columns exist. */
static inline __attribute__((always_inline)) void delta_strip(const pm_delta_args *args, float *strip, size_t stride,
                                                              int d, const int vectors, pm_mask mask)
{
    size_t key_dim = (size_t)args->key_dim, value_dim = (size_t)args->value_dim;
    for (size_t t = 0; t < (size_t)args->n; t++) {
        const float *q = args->q + t * key_dim, *k = args->k + t * key_dim;
        const pm_floats decay = pm_set8(args->decay[t]), beta = pm_set8(args->beta[t]);
        pm_floats recalled[4], change[4], read[4];
        for (int j = 0; j < vectors; j++)
            recalled[j] = read[j] = pm_zero8();
        float *s = strip;
        for (size_t i = 0; i < key_dim; i++, s += stride) {
            pm_floats key = pm_set8(k[i]);
            for (int j = 0; j < vectors; j++)
                recalled[j] = pm_fma8(key, pm_mul8(decay, LOAD(s + 8 * j)), recalled[j]);
        }
        for (int j = 0; j < vectors; j++)
            change[j] = pm_mul8(beta, pm_sub8(LOAD(args->v + t * value_dim + d + 8 * j), recalled[j]));
        s = strip;
        for (size_t i = 0; i < key_dim; i++, s += stride) {
            pm_floats key = pm_set8(k[i]), query = pm_set8(q[i]);
            for (int j = 0; j < vectors; j++) {
                pm_floats updated = pm_fma8(key, change[j], pm_mul8(decay, LOAD(s + 8 * j)));
                STORE(s + 8 * j, updated);
                read[j] = pm_fma8(query, updated, read[j]);
            }
        }
        for (int j = 0; j < vectors; j++)
            STORE(args->out + t * value_dim + d + 8 * j, read[j]);
    }
}

#undef LOAD
#undef STORE

/* Copies key_dim rows of PM_DELTA_STRIP elements. */
static void copy_strip(float *to, size_t to_stride, const float *from, size_t from_stride, int key_dim)
{
    for (size_t i = 0; i < (size_t)key_dim; i++)
        memcpy(to + i * to_stride, from + i * from_stride, PM_DELTA_STRIP * sizeof(float));
}

/* The state is worked on in strips. Over several tokens a strip is copied together, because its rows, a power of two
 * apart, would compete for the same few lines of the first-level cache. */
void pm_lanes_delta(const pm_delta_args *args)
{
    enum { WORTH_COPYING = 4 }; /* tokens */
    const pm_mask all = pm_mask8(8);
    size_t stride = (size_t)args->value_dim;
    int d = 0;
    for (; d + PM_DELTA_STRIP <= args->value_dim; d += PM_DELTA_STRIP) {
        if (args->n < WORTH_COPYING) {
            delta_strip(args, args->state + d, stride, d, 4, all);
            continue;
        }
        copy_strip(args->room, PM_DELTA_STRIP, args->state + d, stride, args->key_dim);
        delta_strip(args, args->room, PM_DELTA_STRIP, d, 4, all);
        copy_strip(args->state + d, stride, args->room, PM_DELTA_STRIP, args->key_dim);
    }
    for (; d < args->value_dim; d += 8)
        delta_strip(args, args->state + d, stride, d, 1, pm_mask8(args->value_dim - d));
}

void pm_lanes_gated_norm(const float *x, const float *norm, const float *z, float eps, int n, float *out)
{
    float r = pm_rsqrt(pm_dot_lanes(x, x, n) / (float)n + eps);
    pm_floats factor = pm_set8(r);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        pm_floats y = pm_mul8(pm_mul8(pm_load8(x + i), factor), pm_load8(norm + i));
        pm_store8(out + i, pm_mul8(y, pm_silu8(pm_load8(z + i))));
    }
    for (; i < n; i++)
        out[i] = x[i] * r * norm[i] * pm_silu(z[i]);
}
