/* The scalar kernels of mamba2.c for AVX2, with the same bits. */
#include "backend/cpu/math_avx2.h"
#include "backend/cpu/mixer.h"

void pm_avx2_ssm_gates(float A_log, float raw, float min, float max, float *decay, float *dt)
{
    pm_ssm_gates(A_log, raw, min, max, decay, dt);
}

#define LOAD(p)     (vectors == 1 ? _mm256_maskload_ps(p, mask) : _mm256_loadu_ps(p))
#define STORE(p, x) (vectors == 1 ? _mm256_maskstore_ps(p, mask, x) : _mm256_storeu_ps(p, x))

/* Columns [d, d + 8 * vectors) of the state over all tokens. With one vector, `mask` says which of them exist. */
static inline __attribute__((always_inline)) void ssm_strip(const pm_ssm_args *args, int d, const int vectors,
                                                            __m256i mask)
{
    size_t states = (size_t)args->state_size, dim = (size_t)args->head_dim;
    const __m256 D = _mm256_set1_ps(args->D);
    for (size_t t = 0; t < (size_t)args->n; t++) {
        const float *b = args->b + t * states, *c = args->c + t * states, *x = args->x + t * dim + d;
        const __m256 decay = _mm256_set1_ps(args->decay[t]), dt = _mm256_set1_ps(args->dt[t]);
        __m256 input[4], read[4];
        for (int j = 0; j < vectors; j++) {
            input[j] = _mm256_mul_ps(dt, LOAD(x + 8 * j));
            read[j] = _mm256_setzero_ps();
        }
        float *s = args->state + d;
        for (size_t i = 0; i < states; i++, s += dim) {
            __m256 in = _mm256_broadcast_ss(b + i), out = _mm256_broadcast_ss(c + i);
            for (int j = 0; j < vectors; j++) {
                __m256 updated = _mm256_fmadd_ps(in, input[j], _mm256_mul_ps(decay, LOAD(s + 8 * j)));
                STORE(s + 8 * j, updated);
                read[j] = _mm256_fmadd_ps(out, updated, read[j]);
            }
        }
        for (int j = 0; j < vectors; j++)
            STORE(args->out + t * dim + d + 8 * j, _mm256_fmadd_ps(D, LOAD(x + 8 * j), read[j]));
    }
}

#undef LOAD
#undef STORE

void pm_avx2_ssm(const pm_ssm_args *args)
{
    const __m256i all = _mm256_set1_epi32(-1);
    int d = 0;
    for (; d + 32 <= args->head_dim; d += 32)
        ssm_strip(args, d, 4, all);
    for (; d < args->head_dim; d += 8)
        ssm_strip(args, d, 1, pm_mask8(args->head_dim - d));
}
