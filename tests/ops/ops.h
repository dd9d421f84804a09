/* What the tests of operations share: a random stream, comparisons that say where, the levels of this processor. */
#ifndef PM_TEST_OPS_H
#define PM_TEST_OPS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/math.h"
#include "ops/emulated.h"

static inline uint32_t random_u32(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = *state ^ *state >> 29;
    return (uint32_t)(x * 0x9e3779b97f4a7c15u >> 32);
}

/* Uniform in [-1, 1). */
static inline float random_f32(uint64_t *state)
{
    return (float)(int32_t)random_u32(state) * 0x1p-31f;
}

static inline int random_int(uint64_t *state, int low, int high) /* both included */
{
    return low + (int)(random_u32(state) % (uint32_t)(high - low + 1));
}

static inline void *must_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

static inline float *random_array(uint64_t *state, size_t n, float scale)
{
    float *x = must_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * random_f32(state);
    return x;
}

/* Fails, naming the first element, unless the n floats are the same bits. */
static inline void assert_same_bits(const char *what, const float *got, const float *want, size_t n)
{
    if (memcmp(got, want, n * sizeof *got) == 0)
        return;
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s: element %zu of %zu is %a, expected %a", what, i, n, (double)got[i], (double)want[i]);
}

/* Whether this processor has the level. */
static inline bool have_level(pm_simd simd)
{
    pm_backend *backend = NULL;
    bool have = pm_backend_cpu_new(&backend, 1, simd, PM_PRECISION_EXACT, NULL) == PM_OK;
    if (have)
        backend->ops->free(backend);
    return have;
}

/* A CPU backend, which a failure to make ends the test. */
static inline pm_backend *cpu_backend(int threads, pm_simd simd)
{
    pm_backend *backend;
    pm_error err;
    if (pm_backend_cpu_new(&backend, threads, simd, PM_PRECISION_EXACT, &err) != PM_OK)
        fail_msg("backend: %s", err.message);
    return backend;
}

/* Levels and threads under which every result must be the same bits; the first is the reference. A processor that has a
 * level has those before it. */
static const struct {
    int threads;
    pm_simd simd;
} settings[] = {
    {1, PM_SIMD_SCALAR},
#if defined(EMULATED) /* slow: few threads, each level once */
    {2, PM_SIMD_NEON},
    {1, PM_SIMD_DOT},
    {1, PM_SIMD_I8MM},
#else
    {2, PM_SIMD_SCALAR}, {5, PM_SIMD_SCALAR},
#if defined(__aarch64__)
    {1, PM_SIMD_NEON},   {2, PM_SIMD_NEON},   {5, PM_SIMD_NEON}, {2, PM_SIMD_DOT}, {2, PM_SIMD_I8MM},
#else
    {1, PM_SIMD_AVX2},   {2, PM_SIMD_AVX2},   {5, PM_SIMD_AVX2},
    {1, PM_SIMD_AVX512}, {2, PM_SIMD_AVX512}, {2, PM_SIMD_AMX},
#endif
#endif
};

/* How many of them this processor has; says so when that is not all. */
static inline int count_settings(void)
{
    int n = 0, all = (int)(sizeof(settings) / sizeof(settings[0]));
    while (n < all && have_level(settings[n].simd))
        n++;
    if (n < all)
        print_message("this processor lacks level %d, which is not tested\n", (int)settings[n].simd);
    return n;
}

/* A vector as a cache of the type keeps it. */
static inline void as_stored(pm_kv_type type, double *x, int n)
{
    for (int i = 0; type == PM_KV_F16 && i < n; i++)
        x[i] = (double)pm_from_f16(pm_to_f16((float)x[i]));
    for (int at = 0; type == PM_KV_Q8 && at < n; at += PM_KV_GROUP) {
        float most = 0;
        int end = n - at < PM_KV_GROUP ? n : at + PM_KV_GROUP;
        for (int i = at; i < end; i++)
            most = fmaxf(most, fabsf((float)x[i]));
        for (int i = at; i < end && most > 0; i++)
            x[i] = (double)(most / 127 * rintf((float)x[i] * (127 / most)));
    }
}

/* How near a mixture of rows comes to one of such vectors in double: an element at the border of two integers may fall
 * on the other side. */
static inline double stored_tolerance(pm_kv_type type)
{
    static const double tolerance[] = {[PM_KV_F16] = 2e-3, [PM_KV_F32] = 2e-5, [PM_KV_Q8] = 5e-3};
    return tolerance[type];
}

static inline pm_tensor *new_tensor(pm_backend *backend, int64_t rows, int64_t cols, const float *init)
{
    pm_tensor *tensor;
    pm_error err;
    if (backend->ops->tensor_new(backend, rows, cols, init, &tensor, &err) != PM_OK)
        fail_msg("tensor: %s", err.message);
    return tensor;
}

#endif
