/* The scalar kernels of delta.c for AVX2, with the same bits. */
#include "backend/cpu/math_avx2.h"
#include "backend/cpu/mixer.h"

/* Channels [c, c + 8), of which those in `mask` exist. The taps of a channel lie side by side, hence the gather. */
static void conv_channels(const pm_conv_args *args, int c, __m256i mask, float *y)
{
    int kernel = args->kernel;
    const __m256i taps = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(kernel));
    const float *w = args->w + (size_t)c * (size_t)kernel;
    const __m256 zero = _mm256_setzero_ps();
    const __m256 bias = args->bias ? _mm256_maskload_ps(args->bias + c, mask) : zero;
    enum { AHEAD = 8 }; /* taps in registers; a longer kernel gathers the rest again for each token */
    __m256 tap[AHEAD];
    int kept = kernel < AHEAD ? kernel : AHEAD;
    for (int i = 0; i < kept; i++)
        tap[i] = _mm256_mask_i32gather_ps(zero, w + i, taps, _mm256_castsi256_ps(mask), 4);
    for (int t = 0; t < args->n; t++) {
        __m256 sum = bias;
        for (int i = 0; i < kept; i++)
            sum = _mm256_fmadd_ps(tap[i], _mm256_maskload_ps(args->x[t + i] + c, mask), sum);
        for (int i = kept; i < kernel; i++)
            sum = _mm256_fmadd_ps(_mm256_mask_i32gather_ps(zero, w + i, taps, _mm256_castsi256_ps(mask), 4),
                                  _mm256_maskload_ps(args->x[t + i] + c, mask), sum);
        _mm256_maskstore_ps(y + (size_t)t * (size_t)args->width + c, mask, args->linear ? sum : pm_silu8(sum));
    }
}

void pm_avx2_conv(const pm_conv_args *args, float *y)
{
    for (int c = 0; c < args->width; c += 8)
        conv_channels(args, c, pm_mask8(args->width - c), y);
}

void pm_avx2_delta_gates(float A_log, float a, float b, float *decay, float *beta)
{
    pm_delta_gates(A_log, a, b, decay, beta);
}

#define LOAD(p)     (vectors == 1 ? _mm256_maskload_ps(p, mask) : _mm256_loadu_ps(p))
#define STORE(p, x) (vectors == 1 ? _mm256_maskstore_ps(p, mask, x) : _mm256_storeu_ps(p, x))

/* Columns [d, d + 8 * vectors) of the state over all tokens. Row i of these columns is at strip + i * stride. With one
 * vector, `mask` says which of its columns exist. */
static inline __attribute__((always_inline)) void delta_strip(const pm_delta_args *args, float *strip, size_t stride,
                                                              int d, const int vectors, __m256i mask)
{
    size_t key_dim = (size_t)args->key_dim, value_dim = (size_t)args->value_dim;
    for (size_t t = 0; t < (size_t)args->n; t++) {
        const float *q = args->q + t * key_dim, *k = args->k + t * key_dim;
        const __m256 decay = _mm256_set1_ps(args->decay[t]), beta = _mm256_set1_ps(args->beta[t]);
        __m256 recalled[4], change[4], read[4];
        for (int j = 0; j < vectors; j++)
            recalled[j] = read[j] = _mm256_setzero_ps();
        float *s = strip;
        for (size_t i = 0; i < key_dim; i++, s += stride) {
            __m256 key = _mm256_broadcast_ss(k + i);
            for (int j = 0; j < vectors; j++)
                recalled[j] = _mm256_fmadd_ps(key, _mm256_mul_ps(decay, LOAD(s + 8 * j)), recalled[j]);
        }
        for (int j = 0; j < vectors; j++)
            change[j] = _mm256_mul_ps(beta, _mm256_sub_ps(LOAD(args->v + t * value_dim + d + 8 * j), recalled[j]));
        s = strip;
        for (size_t i = 0; i < key_dim; i++, s += stride) {
            __m256 key = _mm256_broadcast_ss(k + i), query = _mm256_broadcast_ss(q + i);
            for (int j = 0; j < vectors; j++) {
                __m256 updated = _mm256_fmadd_ps(key, change[j], _mm256_mul_ps(decay, LOAD(s + 8 * j)));
                STORE(s + 8 * j, updated);
                read[j] = _mm256_fmadd_ps(query, updated, read[j]);
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
void pm_avx2_delta(const pm_delta_args *args)
{
    enum { WORTH_COPYING = 4 }; /* tokens */
    const __m256i all = _mm256_set1_epi32(-1);
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

void pm_avx2_gated_norm(const float *x, const float *norm, const float *z, float eps, int n, float *out)
{
    float r = pm_rsqrt(pm_dot_avx2(x, x, n) / (float)n + eps);
    __m256 factor = _mm256_set1_ps(r);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 y = _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(norm + i));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(y, pm_silu8(_mm256_loadu_ps(z + i))));
    }
    for (; i < n; i++)
        out[i] = x[i] * r * norm[i] * pm_silu(z[i]);
}
