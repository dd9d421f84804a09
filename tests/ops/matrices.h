/* Random matrices of every format, for the tests of operations. */
#ifndef TEST_MATRICES_H
#define TEST_MATRICES_H

#include "backend/backend.h"
#include "backend/cpu/math.h"
#include "backend/cpu/matrix.h"
#include "ops/emulated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- chance ---- */

typedef struct test_random {
    uint64_t state;
} test_random;

static inline uint32_t random_u32(test_random *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = r->state ^ r->state >> 29;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> 32);
}

static inline float random_float(test_random *r) /* -1 .. 1 */
{
    return (float)((int32_t)random_u32(r)) * 0x1p-31f;
}

/* ---- matrices ---- */

typedef enum test_contents {
    CONTENTS_RANDOM,
    CONTENTS_ALL_ONES, /* every integer at its largest */
    CONTENTS_HUGE,     /* scales near the end of the range */
    CONTENTS_TINY,     /* scales that are subnormal in their type */
    CONTENTS_SIGNED,   /* negative scales, and zeros of both signs */
    CONTENTS
} test_contents;

typedef struct test_kind {
    const char *name;
    pm_format format;
    pm_scale_type type;
    int bits, group; /* FP8: blocks of group by group */
} test_kind;

/* A matrix in memory of its own, each part one byte past an aligned address and not a byte longer than it must be. */
typedef struct test_matrix {
    pm_weight w;
    uint8_t *parts[3];
} test_matrix;

static inline uint16_t to_bf16(float x)
{
    return (uint16_t)(pm_bits(x) >> 16);
}

static inline size_t scale_size(pm_scale_type type)
{
    return type == PM_SCALE_F32 ? 4 : type == PM_SCALE_BF16 || type == PM_SCALE_F16 ? 2 : 1;
}

/* A scale of one byte, never NaN. */
static inline uint8_t random_code(test_random *r, test_contents contents, pm_scale_type type)
{
    int n = (int)(random_u32(r) >> 8), sign = type == PM_SCALE_E4M3 && contents == CONTENTS_SIGNED ? n & 128 : 0;
    switch (contents) {
    case CONTENTS_HUGE: return (uint8_t)(type == PM_SCALE_E8M0 ? 225 + n % 30 : 0x70 + n % 15);
    case CONTENTS_TINY: return (uint8_t)(n % (type == PM_SCALE_E8M0 ? 3 : 9));
    default: return (uint8_t)(sign | (type == PM_SCALE_E8M0 ? 117 + n % 8 : 0x10 + n % 32));
    }
}

static inline void put_scale(uint8_t *to, pm_scale_type type, float x)
{
    uint16_t half = type == PM_SCALE_BF16 ? to_bf16(x) : pm_to_f16(x);
    memcpy(to, type == PM_SCALE_F32 ? (void *)&x : (void *)&half, type == PM_SCALE_F32 ? 4 : 2);
}

static inline float random_scale(test_random *r, test_contents contents, pm_scale_type type)
{
    float x = random_float(r);
    switch (contents) {
    case CONTENTS_HUGE: return x * (type == PM_SCALE_F16 ? 6e4f : 1e30f);
    case CONTENTS_TINY: return x * (type == PM_SCALE_F16 ? 1e-6f : 1e-39f);
    case CONTENTS_SIGNED: return random_u32(r) % 3 ? -fabsf(x) : x < 0 ? -0.0f : 0.0f;
    default: return x * 0.05f;
    }
}

/* Weights, of whatever bits, in bytes. */
static inline void random_bytes(test_random *r, test_contents contents, pm_format format, uint8_t *out, size_t n)
{
    bool e4m3 = format == PM_FORMAT_MXFP8 || format == PM_FORMAT_FP8, e2m1 = !e4m3 && format != PM_FORMAT_AFFINE;
    for (size_t i = 0; i < n; i++) {
        uint8_t code = (uint8_t)random_u32(r);
        if (contents == CONTENTS_ALL_ONES)
            code = e4m3 ? code | 0x7e : e2m1 ? code | 0x77 : 255;
        out[i] = e4m3 && (code & 127) == 127 ? code ^ 1 : code;
    }
}

static inline test_matrix matrix_new(test_random *r, const test_kind *kind, test_contents contents, int out, int in)
{
    test_matrix m = {.w = {.format = kind->format,
                           .scale_type = kind->type,
                           .bits = kind->bits,
                           .group = kind->group,
                           .block = {kind->group, kind->group},
                           .global = contents == CONTENTS_RANDOM ? 0.75f : 0.0123f,
                           .out = out,
                           .in = in}};
    size_t data = pm_weight_row_bytes(&m.w) * (size_t)out, scales = pm_weight_scale_bytes(&m.w) * (size_t)out;
    if (kind->format == PM_FORMAT_FP8)
        scales = pm_weight_scale_bytes(&m.w) * (size_t)((out + kind->group - 1) / kind->group);
    for (int i = 0; i < 3; i++)
        m.parts[i] = malloc((i ? scales : data) + 1);
    m.w.data = m.parts[0] + 1;
    if (kind->format >= PM_FORMAT_AFFINE) {
        size_t size = scale_size(kind->type);
        random_bytes(r, contents, kind->format, m.parts[0] + 1, data);
        for (int part = 1; part < 3; part++)
            for (size_t i = 0; i < scales; i += size)
                if (size == 1)
                    m.parts[part][1 + i] = random_code(r, contents, kind->type);
                else
                    put_scale(m.parts[part] + 1 + i, kind->type, random_scale(r, contents, kind->type));
        m.w.scales = m.parts[1] + 1;
        m.w.biases = kind->format == PM_FORMAT_AFFINE ? m.parts[2] + 1 : NULL;
    } else {
        pm_scale_type type = kind->format == PM_FORMAT_BF16  ? PM_SCALE_BF16
                             : kind->format == PM_FORMAT_F16 ? PM_SCALE_F16
                                                             : PM_SCALE_F32;
        for (size_t i = 0, size = kind->format == PM_FORMAT_F32 ? 4 : 2; i < data; i += size)
            put_scale(m.parts[0] + 1 + i, type, random_scale(r, contents, type));
    }
    return m;
}

static inline void matrix_free(test_matrix *m)
{
    for (int i = 0; i < 3; i++)
        free(m->parts[i]);
}

/* A number of `exponent` and `mantissa` bits as OCP defines it: subnormals, and no infinity; NaN only in e4m3. */
static inline double ocp(int code, int exponent, int mantissa)
{
    int bias = (1 << (exponent - 1)) - 1, e = code >> mantissa & ((1 << exponent) - 1);
    double fraction = (code & ((1 << mantissa) - 1)) / (double)(1 << mantissa);
    double size = e ? ldexp(1 + fraction, e - bias) : ldexp(fraction, 1 - bias);
    if (exponent == 4 && (code & 127) == 127)
        size = NAN;
    return code >> (exponent + mantissa) & 1 ? -size : size;
}

static inline bool is_e2m1(const pm_weight *w)
{
    return w->format == PM_FORMAT_MXFP4 || w->format == PM_FORMAT_NVFP4;
}

/* Integers of a row, without the library's own unpacking. */
static inline int integer_at(const pm_weight *w, int row, int k)
{
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row * pm_weight_row_bytes(w);
    int v = 0, bits = is_e2m1(w) ? 4 : w->bits;
    for (int i = 0; i < bits; i++) {
        int bit = k * bits + i;
        v |= (data[bit / 8] >> (bit % 8) & 1) << i;
    }
    return is_e2m1(w) ? (int)(2 * ocp(v, 2, 1)) : v;
}

static inline double scale_at(const void *scales, const pm_weight *w, int row, int k)
{
    size_t per_row = (size_t)((w->in + w->group - 1) / w->group);
    if (!scales)
        return 0;
    if (w->format == PM_FORMAT_FP8)
        row = (row + w->block_first) / w->block[0];
    size_t i = (size_t)row * per_row + (size_t)(k / w->group);
    double half = is_e2m1(w) ? 0.5 : 1;
    if (w->scale_type == PM_SCALE_E8M0)
        return half * ldexp(1, ((const uint8_t *)scales)[i] - 127);
    if (w->scale_type == PM_SCALE_E4M3)
        return half * ocp(((const uint8_t *)scales)[i], 4, 3) * w->global;
    return pm_read_scale(scales, w->scale_type, i);
}

static inline double weight_at(const pm_weight *w, int row, int k)
{
    size_t i = (size_t)row * (size_t)w->in + (size_t)k;
    if (pm_is_quantised(w))
        return scale_at(w->scales, w, row, k) * integer_at(w, row, k) + scale_at(w->biases, w, row, k);
    if (w->format >= PM_FORMAT_AFFINE)
        return ocp(((const uint8_t *)w->data)[i], 4, 3) * scale_at(w->scales, w, row, k);
    return pm_read_scale(w->data,
                         w->format == PM_FORMAT_BF16  ? PM_SCALE_BF16
                         : w->format == PM_FORMAT_F16 ? PM_SCALE_F16
                                                      : PM_SCALE_F32,
                         i);
}

/* ---- comparing ---- */

static inline bool same_bits(float a, float b)
{
    return pm_bits(a) == pm_bits(b) || (a != a && b != b);
}

/* Fails with the first place where the two differ. */
static inline void assert_same(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!same_bits(a[i], b[i]))
            fail_msg("%s: element %zu of %zu is %a here and %a there", what, i, n, (double)a[i], (double)b[i]);
}

/* ---- backends ---- */

/* A test that is run in both precisions: it begins with precision_of(state). */
static const pm_precision precisions[] = {PM_PRECISION_EXACT, PM_PRECISION_FAST};
#define IN_BOTH_PRECISIONS(test)                                                                                       \
    {#test ", exact", test, NULL, NULL, (void *)&precisions[0]},                                                       \
    {                                                                                                                  \
#test ", fast", test, NULL, NULL, (void *)&precisions[1]                                                       \
    }

static inline pm_precision precision_of(void *const *state)
{
    return *(const pm_precision *)*state;
}

static inline pm_backend *backend_of(int threads, pm_simd simd, pm_precision precision)
{
    pm_backend *backend = NULL;
    pm_error err;
    if (pm_backend_cpu_new(&backend, threads, simd, precision, &err) != PM_OK)
        fail_msg("no backend: %s", err.message);
    return backend;
}

static inline pm_backend *backend_new(int threads, pm_simd simd)
{
    return backend_of(threads, simd, PM_PRECISION_EXACT);
}

static const struct {
    pm_simd simd;
    const char *name;
} levels[] = {
    {PM_SIMD_SCALAR, "scalar"},
#if defined(__aarch64__)
    {PM_SIMD_NEON, "NEON"},
    {PM_SIMD_DOT, "NEON with SDOT"},
    {PM_SIMD_I8MM, "NEON with SMMLA"},
#else
    {PM_SIMD_AVX2, "AVX2"},
    {PM_SIMD_AVX512, "AVX-512"},
    {PM_SIMD_AMX, "AMX"},
#endif
};

enum { TEST_LEVELS = sizeof(levels) / sizeof(levels[0]) };

/* NULL, with a line that says so, when this machine lacks the level. */
static inline pm_backend *level_backend(int threads, int level, pm_precision precision)
{
    pm_backend *backend = NULL;
    pm_error err;
    int status = pm_backend_cpu_new(&backend, threads, levels[level].simd, precision, &err);
    if (status == PM_ERR_UNSUPPORTED)
        print_message("%s is absent on this machine and is not tested: %s\n", levels[level].name, err.message);
    else if (status != PM_OK)
        fail_msg("no backend: %s", err.message);
    return backend;
}

static inline pm_tensor *tensor_new(pm_backend *backend, int64_t rows, int64_t cols, const float *init)
{
    pm_tensor *tensor = NULL;
    pm_error err;
    if (backend->ops->tensor_new(backend, rows, cols, init, &tensor, &err) != PM_OK)
        fail_msg("no tensor: %s", err.message);
    return tensor;
}

static inline void tensor_get(pm_backend *backend, const pm_tensor *tensor, int64_t rows, float *out)
{
    assert_int_equal(backend->ops->tensor_read(backend, tensor, 0, rows, out, NULL), PM_OK);
}

#endif
