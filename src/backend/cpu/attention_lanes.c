/* The scalar kernels of attention.c eight lanes at a time, with the same bits. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/mixer.h"

void pm_lanes_widen(const uint16_t *from, float *to, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        pm_store8(to + i, pm_load_f16x8(from + i));
    for (; i < n; i++)
        to[i] = pm_from_f16(from[i]);
}

void pm_lanes_narrow(const float *from, uint16_t *to, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        pm_store_f16x8(to + i, pm_load8(from + i));
    for (; i < n; i++)
        to[i] = pm_to_f16(from[i]);
}

/* One group of n elements. */
static inline void pack_group(const float *from, float *scale, int8_t *to, int n)
{
    const pm_ints magnitude = pm_set_ints8(0x7fffffff);
    pm_ints most = pm_zero_ints8();
    for (int i = 0; i < n; i += 8)
        most = pm_max_ints8(most, pm_and_ints8(pm_as_ints8(pm_load_part8(from + i, pm_mask8(n - i))), magnitude));
    float factor;
    if (!pm_q8_group((uint32_t)pm_largest_int8(most), scale, &factor)) {
        memset(to, 0, (size_t)n);
        return;
    }
    pm_floats f = pm_set8(factor);
    for (int i = 0; i < n; i += 8) {
        int8_t bytes[8];
        pm_store_s8x8(bytes, pm_round8(pm_mul8(pm_load_part8(from + i, pm_mask8(n - i)), f)));
        memcpy(to + i, bytes, n - i < 8 ? (size_t)(n - i) : 8);
    }
}

void pm_lanes_pack(const float *from, void *to, int n)
{
    int groups = (n + PM_KV_GROUP - 1) / PM_KV_GROUP;
    int8_t *q = (int8_t *)to + (size_t)groups * sizeof(float);
    for (int g = 0; g < groups; g++) {
        int at = g * PM_KV_GROUP;
        float scale;
        pack_group(from + at, &scale, q + at, n - at < PM_KV_GROUP ? n - at : PM_KV_GROUP);
        memcpy((char *)to + (size_t)g * sizeof scale, &scale, sizeof scale);
    }
}

void pm_lanes_unpack(const void *from, float *to, int n)
{
    const char *scales = from;
    const int8_t *q = (const int8_t *)from + pm_kv_bytes(PM_KV_Q8, n) - (size_t)n;
    for (int at = 0; at < n; at += PM_KV_GROUP, scales += sizeof(float)) {
        int end = n - at < PM_KV_GROUP ? n : at + PM_KV_GROUP, i = at;
        float scale;
        memcpy(&scale, scales, sizeof scale);
        pm_floats s = pm_set8(scale);
        for (; i + 8 <= end; i += 8) {
            pm_store8(to + i, pm_mul8(s, pm_to_floats8(pm_load_s8x8(q + i))));
        }
        for (; i < end; i++)
            to[i] = scale * (float)q[i];
    }
}

/* Adds elements [k, k + 16) of the products of q with 4 rows; in the tail only the first `left` of them. */
static inline void dot4_step(const float *q, const float *const row[4], int k, int left, pm_floats low[4],
                             pm_floats high[4])
{
    if (left >= 16) {
        pm_floats a = pm_load8(q + k), b = pm_load8(q + k + 8);
        for (int j = 0; j < 4; j++) {
            low[j] = pm_fma8(a, pm_load8(row[j] + k), low[j]);
            high[j] = pm_fma8(b, pm_load8(row[j] + k + 8), high[j]);
        }
        return;
    }
    pm_mask first = pm_mask8(left), second = pm_mask8(left - 8);
    pm_floats a = pm_load_part8(q + k, first), b = pm_load_part8(q + k + 8, second);
    for (int j = 0; j < 4; j++) {
        low[j] = pm_fma_masked(a, pm_load_part8(row[j] + k, first), low[j], first);
        high[j] = pm_fma_masked(b, pm_load_part8(row[j] + k + 8, second), high[j], second);
    }
}

void pm_lanes_scores(const float *q, const float *k, size_t stride, int dim, int n, float scale, float *scores)
{
    int j = 0;
    for (; j + 4 <= n; j += 4) {
        const float *row = k + (size_t)j * stride;
        const float *const rows[4] = {row, row + stride, row + 2 * stride, row + 3 * stride};
        pm_floats low[4], high[4];
        for (int i = 0; i < 4; i++)
            low[i] = high[i] = pm_zero8();
        int i = 0;
        for (; i + 16 <= dim; i += 16)
            dot4_step(q, rows, i, 16, low, high);
        if (i < dim)
            dot4_step(q, rows, i, dim - i, low, high);
        for (i = 0; i < 4; i++)
            low[i] = pm_add8(low[i], high[i]);
        pm_store_trees4(low, scale, scores + j);
    }
    for (; j < n; j++)
        scores[j] = scale * pm_dot_lanes(q, k + (size_t)j * stride, dim);
}

float pm_lanes_softmax(float scores[PM_BLOCK_ROWS], float *max, float *sum)
{
    pm_floats most = pm_set8(*max);
    for (int j = 0; j < PM_BLOCK_ROWS; j += 8) /* the second operand where a score is NaN */
        most = pm_max8(pm_load8(scores + j), most);
    float largest = pm_largest8(most);
    pm_floats low = pm_zero8(), high = low, shift = pm_set8(largest);
    for (int j = 0; j < PM_BLOCK_ROWS; j += 16) {
        pm_floats a = pm_exp8(pm_sub8(pm_load8(scores + j), shift));
        pm_floats b = pm_exp8(pm_sub8(pm_load8(scores + j + 8), shift));
        pm_store8(scores + j, a);
        pm_store8(scores + j + 8, b);
        low = pm_add8(low, a);
        high = pm_add8(high, b);
    }
    float correction = pm_exp(*max - largest);
    *sum = fmaf(*sum, correction, pm_reduce16_lanes(low, high));
    *max = largest;
    return correction;
}

/* Columns [0, 8 * vectors) of acc and v, kept in registers over all rows. */
static inline __attribute__((always_inline)) void mix_columns(float *acc, pm_floats correction, const float *p,
                                                              const float *v, size_t stride, int n, const int vectors)
{
    pm_floats a[8];
    for (int i = 0; i < vectors; i++)
        a[i] = pm_mul8(pm_load8(acc + 8 * i), correction);
    for (int j = 0; j < n; j++, v += stride) {
        pm_floats weight = pm_set8(p[j]);
        for (int i = 0; i < vectors; i++)
            a[i] = pm_fma8(weight, pm_load8(v + 8 * i), a[i]);
    }
    for (int i = 0; i < vectors; i++)
        pm_store8(acc + 8 * i, a[i]);
}

void pm_lanes_mix(float *acc, float correction, const float *p, const float *v, size_t stride, int dim, int n)
{
    pm_floats factor = pm_set8(correction);
    int d = 0;
    for (; d + 64 <= dim; d += 64)
        mix_columns(acc + d, factor, p, v + d, stride, n, 8);
    for (; d + 8 <= dim; d += 8)
        mix_columns(acc + d, factor, p, v + d, stride, n, 1);
    if (d < dim) {
        pm_mask mask = pm_mask8(dim - d);
        pm_floats a = pm_mul8(pm_load_part8(acc + d, mask), factor);
        for (int j = 0; j < n; j++)
            a = pm_fma8(pm_set8(p[j]), pm_load_part8(v + (size_t)j * stride + d, mask), a);
        pm_store_part8(acc + d, mask, a);
    }
}

void pm_lanes_gate(float *x, const float *gate, int n)
{
    int i = 0;
    for (; i + 8 <= n; i += 8)
        pm_store8(x + i, pm_mul8(pm_load8(x + i), pm_sigmoid8(pm_load8(gate + i))));
    for (; i < n; i++)
        x[i] *= pm_sigmoid(gate[i]);
}

void pm_lanes_add_positive(float *acc, const float *x, float weight, int n)
{
    pm_floats factor = pm_set8(weight), zero = pm_zero8();
    int i = 0;
    for (; i + 8 <= n; i += 8) /* max gives its second operand where x is NaN */
        pm_store8(acc + i, pm_fma8(factor, pm_max8(pm_load8(x + i), zero), pm_load8(acc + i)));
    for (; i < n; i++)
        acc[i] = fmaf(weight, x[i] > 0.0f ? x[i] : 0.0f, acc[i]);
}
