/* The scalar kernel of compress.c for AVX2, with the same bits. */
#include "backend/cpu/math_avx2.h"
#include "backend/cpu/mixer.h"

void pm_avx2_compress(float *state, size_t stride, const float *kv, const float *gate, const float *bias, int n)
{
    float *max = state, *sum = state + stride, *acc = state + 2 * stride;
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_add_ps(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(bias + i));
        __m256 most = _mm256_loadu_ps(max + i), step = _mm256_sub_ps(g, most);
        __m256 e = pm_exp8(_mm256_or_ps(step, sign)), more = _mm256_cmp_ps(step, _mm256_setzero_ps(), _CMP_GT_OQ);
        __m256 correction = _mm256_blendv_ps(one, e, more), p = _mm256_blendv_ps(e, one, more);
        _mm256_storeu_ps(max + i, _mm256_blendv_ps(most, g, more));
        _mm256_storeu_ps(sum + i, _mm256_fmadd_ps(_mm256_loadu_ps(sum + i), correction, p));
        __m256 weighted = _mm256_mul_ps(_mm256_loadu_ps(acc + i), correction);
        _mm256_storeu_ps(acc + i, _mm256_fmadd_ps(p, _mm256_loadu_ps(kv + i), weighted));
    }
    if (i < n)
        pm_scalar_compress(state + i, stride, kv + i, gate + i, bias + i, n - i);
}
