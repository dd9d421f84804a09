/* Eight lanes of 32 bits: one register of AVX2 or two of NEON, so that most kernels are written once for both. Included
 * by files named *_lanes.c, which are compiled for AVX2 on x86-64 and for the baseline of 64-bit ARM. There are
 *   pm_mask8(n): the first n lanes; less than 0 counts as 0, more than 8 as 8. Functions named part touch no other
 *     memory and read 0 there; pm_gather_part8 takes every `stride`-th float;
 *   pm_choose8: yes where `which` is all ones, no where it is 0;
 *   pm_to_exponent8: the bits of 2^(a - 127);
 *   loads of f16, bf16, e4m3 (divided by 256), signed and unsigned bytes and 4-bit integers, from any address; stores
 * of 16-bit and 8-bit integers, saturated; pm_largest8, pm_largest_int8, pm_sum_ints8: over all lanes; pm_tree8: the
 * rest of cpu.h's tree, for 8 sums; pm_store_trees4: four of them, times a factor; and what the table at the end names.
 */
#ifndef PM_LANES_H
#define PM_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

typedef __m256 pm_floats;
typedef __m256i pm_ints;
typedef __m256i pm_mask; /* of the first lanes */

#define PM_UNARY(name, result, type, x86, arm)                                                                         \
    static inline result name(type a)                                                                                  \
    {                                                                                                                  \
        return x86(a);                                                                                                 \
    }
#define PM_BINARY(name, result, type, x86, arm)                                                                        \
    static inline result name(type a, type b)                                                                          \
    {                                                                                                                  \
        return x86(a, b);                                                                                              \
    }

static inline pm_floats pm_set8(float x)
{
    return _mm256_set1_ps(x);
}

static inline pm_ints pm_set_ints8(int32_t x)
{
    return _mm256_set1_epi32(x);
}

static inline pm_floats pm_load8(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline void pm_store8(float *p, pm_floats x)
{
    _mm256_storeu_ps(p, x);
}

static inline pm_mask pm_mask8(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline pm_ints pm_mask_ints8(pm_mask mask)
{
    return mask;
}

static inline pm_floats pm_load_part8(const float *p, pm_mask mask)
{
    return _mm256_maskload_ps(p, mask);
}

static inline void pm_store_part8(float *p, pm_mask mask, pm_floats x)
{
    _mm256_maskstore_ps(p, mask, x);
}

static inline pm_floats pm_gather_part8(const float *p, int stride, pm_mask mask)
{
    const __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(stride));
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, at, _mm256_castsi256_ps(mask), 4);
}

static inline pm_floats pm_fma8(pm_floats a, pm_floats b, pm_floats c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline pm_ints pm_greater8(pm_floats a, pm_floats b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}

static inline pm_floats pm_choose8(pm_ints which, pm_floats yes, pm_floats no)
{
    return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(which));
}

static inline pm_ints pm_halve_ints8(pm_ints a)
{
    return _mm256_srai_epi32(a, 1);
}

static inline pm_ints pm_to_exponent8(pm_ints a)
{
    return _mm256_slli_epi32(a, 23);
}

static inline pm_floats pm_load_f16x8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

static inline void pm_store_f16x8(void *p, pm_floats x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline pm_floats pm_load_bf16x8(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}

/* 8 codes of e4m3, in the low half, as the f16 that are 256 times smaller: their bits are shifted, but for NaN. */
static inline __m128i pm_e4m3_halves(__m128i codes)
{
    const __m128i magnitude = _mm_set1_epi16(0x3f80);
    __m128i half = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7), _mm_set1_epi16((short)0xbf80));
    return _mm_or_si128(half, _mm_cmpeq_epi16(_mm_and_si128(half, magnitude), magnitude));
}

static inline pm_floats pm_load_e4m3x8(const void *p)
{
    return _mm256_cvtph_ps(pm_e4m3_halves(_mm_loadl_epi64((const __m128i *)p)));
}

static inline pm_ints pm_load_s8x8(const void *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline pm_ints pm_load_u8x8(const void *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

static inline pm_ints pm_load_u4x8(const void *p)
{
    int32_t eight;
    memcpy(&eight, p, sizeof(eight));
    const __m256i at = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(eight), at), _mm256_set1_epi32(15));
}

static inline void pm_store_s16x8(int16_t *p, pm_ints x)
{
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

static inline void pm_store_s8x8(int8_t *p, pm_ints x)
{
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}

static inline int32_t pm_largest_int8(pm_ints x)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    m = _mm_max_epi32(m, _mm_unpackhi_epi64(m, m));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 1)));
}

static inline int32_t pm_sum_ints8(pm_ints x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
}

static inline float pm_largest8(pm_floats x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}

static inline float pm_tree8(pm_floats p)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline void pm_store_trees4(const pm_floats p[4], float factor, float *to)
{
    __m128 q[4];
    for (int j = 0; j < 4; j++)
        q[j] = _mm_add_ps(_mm256_castps256_ps128(p[j]), _mm256_extractf128_ps(p[j], 1));
    __m128 a = _mm_add_ps(_mm_movelh_ps(q[0], q[1]), _mm_movehl_ps(q[1], q[0])); /* q[i] + q[i + 2] */
    __m128 b = _mm_add_ps(_mm_movelh_ps(q[2], q[3]), _mm_movehl_ps(q[3], q[2]));
    __m128 sums = _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xdd));
    _mm_storeu_ps(to, _mm_mul_ps(_mm_set1_ps(factor), sums));
}

#else

#include <arm_neon.h>

typedef struct pm_floats {
    float32x4_t low, high;
} pm_floats;

typedef struct pm_ints {
    int32x4_t low, high;
} pm_ints;

typedef int pm_mask; /* how many lanes: 0 to 8 */

#define PM_UNARY(name, result, type, x86, arm)                                                                         \
    static inline result name(type a)                                                                                  \
    {                                                                                                                  \
        return (result){arm(a.low), arm(a.high)};                                                                      \
    }
#define PM_BINARY(name, result, type, x86, arm)                                                                        \
    static inline result name(type a, type b)                                                                          \
    {                                                                                                                  \
        return (result){arm(a.low, b.low), arm(a.high, b.high)};                                                       \
    }

/* As of x86: the second where one is NaN. */
static inline float32x4_t pm_max4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline float32x4_t pm_min4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

static inline pm_floats pm_set8(float x)
{
    return (pm_floats){vdupq_n_f32(x), vdupq_n_f32(x)};
}

static inline pm_ints pm_set_ints8(int32_t x)
{
    return (pm_ints){vdupq_n_s32(x), vdupq_n_s32(x)};
}

static inline pm_floats pm_load8(const float *p)
{
    return (pm_floats){vld1q_f32(p), vld1q_f32(p + 4)};
}

static inline void pm_store8(float *p, pm_floats x)
{
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
}

static inline pm_mask pm_mask8(int n)
{
    return n < 0 ? 0 : n > 8 ? 8 : n;
}

static inline pm_ints pm_mask_ints8(pm_mask mask)
{
    const int32_t lanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    int32x4_t n = vdupq_n_s32(mask);
    return (pm_ints){vreinterpretq_s32_u32(vcltq_s32(vld1q_s32(lanes), n)),
                     vreinterpretq_s32_u32(vcltq_s32(vld1q_s32(lanes + 4), n))};
}

static inline pm_floats pm_load_part8(const float *p, pm_mask mask)
{
    float part[8] = {0};
    memcpy(part, p, (size_t)mask * sizeof(*p));
    return pm_load8(part);
}

static inline void pm_store_part8(float *p, pm_mask mask, pm_floats x)
{
    float part[8];
    pm_store8(part, x);
    memcpy(p, part, (size_t)mask * sizeof(*p));
}

static inline pm_floats pm_gather_part8(const float *p, int stride, pm_mask mask)
{
    float part[8] = {0};
    for (int i = 0; i < mask; i++)
        part[i] = p[i * stride];
    return pm_load8(part);
}

static inline pm_floats pm_fma8(pm_floats a, pm_floats b, pm_floats c)
{
    return (pm_floats){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}

static inline pm_ints pm_greater8(pm_floats a, pm_floats b)
{
    return (pm_ints){vreinterpretq_s32_u32(vcgtq_f32(a.low, b.low)), vreinterpretq_s32_u32(vcgtq_f32(a.high, b.high))};
}

static inline pm_floats pm_choose8(pm_ints which, pm_floats yes, pm_floats no)
{
    return (pm_floats){vbslq_f32(vreinterpretq_u32_s32(which.low), yes.low, no.low),
                       vbslq_f32(vreinterpretq_u32_s32(which.high), yes.high, no.high)};
}

static inline pm_ints pm_halve_ints8(pm_ints a)
{
    return (pm_ints){vshrq_n_s32(a.low, 1), vshrq_n_s32(a.high, 1)};
}

static inline pm_ints pm_to_exponent8(pm_ints a)
{
    return (pm_ints){vshlq_n_s32(a.low, 23), vshlq_n_s32(a.high, 23)};
}

static inline pm_floats pm_from_f16x8(float16x8_t h)
{
    return (pm_floats){vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}

static inline pm_floats pm_load_f16x8(const void *p)
{
    return pm_from_f16x8(vreinterpretq_f16_u8(vld1q_u8(p)));
}

static inline void pm_store_f16x8(void *p, pm_floats x)
{
    vst1q_u8(p, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.low), x.high)));
}

static inline pm_floats pm_load_bf16x8(const void *p)
{
    uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    return (pm_floats){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                       vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16))};
}

static inline pm_floats pm_load_e4m3x8(const void *p)
{
    const uint16x8_t magnitude = vdupq_n_u16(0x3f80);
    uint16x8_t half = vreinterpretq_u16_s16(vshlq_n_s16(vmovl_s8(vld1_s8(p)), 7));
    half = vandq_u16(half, vdupq_n_u16(0xbf80));
    half = vorrq_u16(half, vceqq_u16(vandq_u16(half, magnitude), magnitude));
    return pm_from_f16x8(vreinterpretq_f16_u16(half));
}

static inline pm_ints pm_load_s8x8(const void *p)
{
    int16x8_t words = vmovl_s8(vld1_s8(p));
    return (pm_ints){vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)};
}

static inline pm_ints pm_load_u8x8(const void *p)
{
    int16x8_t words = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
    return (pm_ints){vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)};
}

static inline pm_ints pm_load_u4x8(const void *p)
{
    uint32_t eight;
    memcpy(&eight, p, sizeof(eight));
    uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(eight)),
              codes[2] = {vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4)};
    uint8_t in_order[8];
    vst1_u8(in_order, vzip1_u8(codes[0], codes[1]));
    return pm_load_u8x8(in_order);
}

static inline void pm_store_s16x8(int16_t *p, pm_ints x)
{
    vst1q_s16(p, vqmovn_high_s32(vqmovn_s32(x.low), x.high));
}

static inline void pm_store_s8x8(int8_t *p, pm_ints x)
{
    vst1_s8(p, vqmovn_s16(vqmovn_high_s32(vqmovn_s32(x.low), x.high)));
}

static inline int32_t pm_largest_int8(pm_ints x)
{
    return vmaxvq_s32(vmaxq_s32(x.low, x.high));
}

static inline int32_t pm_sum_ints8(pm_ints x)
{
    return vaddvq_s32(vaddq_s32(x.low, x.high));
}

static inline float pm_largest8(pm_floats x)
{
    return vmaxvq_f32(vmaxq_f32(x.low, x.high));
}

static inline float pm_tree8(pm_floats p)
{
    float32x4_t q = vaddq_f32(p.low, p.high);
    return vaddv_f32(vadd_f32(vget_low_f32(q), vget_high_f32(q)));
}

static inline void pm_store_trees4(const pm_floats p[4], float factor, float *to)
{
    for (int j = 0; j < 4; j++)
        to[j] = factor * pm_tree8(p[j]);
}

#endif

PM_BINARY(pm_add8, pm_floats, pm_floats, _mm256_add_ps, vaddq_f32)
PM_BINARY(pm_sub8, pm_floats, pm_floats, _mm256_sub_ps, vsubq_f32)
PM_BINARY(pm_mul8, pm_floats, pm_floats, _mm256_mul_ps, vmulq_f32)
PM_BINARY(pm_div8, pm_floats, pm_floats, _mm256_div_ps, vdivq_f32)
PM_BINARY(pm_max8, pm_floats, pm_floats, _mm256_max_ps, pm_max4) /* the second where one is NaN */
PM_BINARY(pm_min8, pm_floats, pm_floats, _mm256_min_ps, pm_min4)
PM_BINARY(pm_add_ints8, pm_ints, pm_ints, _mm256_add_epi32, vaddq_s32)
PM_BINARY(pm_sub_ints8, pm_ints, pm_ints, _mm256_sub_epi32, vsubq_s32)
PM_BINARY(pm_and_ints8, pm_ints, pm_ints, _mm256_and_si256, vandq_s32)
PM_BINARY(pm_or_ints8, pm_ints, pm_ints, _mm256_or_si256, vorrq_s32)
PM_BINARY(pm_xor_ints8, pm_ints, pm_ints, _mm256_xor_si256, veorq_s32)
PM_BINARY(pm_max_ints8, pm_ints, pm_ints, _mm256_max_epi32, vmaxq_s32)
PM_UNARY(pm_round8, pm_ints, pm_floats, _mm256_cvtps_epi32, vcvtnq_s32_f32) /* nearest even */
PM_UNARY(pm_to_floats8, pm_floats, pm_ints, _mm256_cvtepi32_ps, vcvtq_f32_s32)
PM_UNARY(pm_as_ints8, pm_ints, pm_floats, _mm256_castps_si256, vreinterpretq_s32_f32) /* the same bits */
PM_UNARY(pm_as_floats8, pm_floats, pm_ints, _mm256_castsi256_ps, vreinterpretq_f32_s32)

static inline pm_floats pm_zero8(void)
{
    return pm_set8(0);
}

static inline pm_ints pm_zero_ints8(void)
{
    return pm_set_ints8(0);
}

#endif
