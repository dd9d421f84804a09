/* Vectors of 8-bit integers with a scale for each 64: against plain arithmetic, at every level the same bytes. */
#include "backend/cpu/mixer.h"
#include "ops.h"

enum { LONGEST = 200, LEVELS = PM_SIMD_I8MM };

/* The levels that this processor has; the first is the reference. */
static int levels(const pm_mixer_kernels *out[LEVELS])
{
    int n = 0;
    for (int simd = PM_SIMD_SCALAR; simd <= PM_SIMD_I8MM; simd++)
        if (have_level((pm_simd)simd))
            out[n++] = pm_mixer_kernels_for((pm_simd)simd);
    return n;
}

/* Packs and unpacks n elements at every level, which must agree and leave what is behind alone; gives the scalar's. */
static void there_and_back(const float *x, int n, float *back)
{
    const pm_mixer_kernels *level[LEVELS];
    size_t bytes = pm_kv_bytes(PM_KV_Q8, n);
    unsigned char want[LONGEST + 5 * sizeof(float)], have[sizeof(want)];
    int count = levels(level);
    for (int k = 0; k < count; k++) {
        float out[LONGEST + 1];
        memset(have, 0xa5, sizeof(have));
        level[k]->pack(x, have, n);
        for (size_t i = bytes; i < sizeof(have); i++)
            assert_int_equal(have[i], 0xa5);
        if (k == 0)
            memcpy(want, have, sizeof(want));
        if (memcmp(want, have, sizeof(want)) != 0)
            fail_msg("level %d packs %d elements in another way than the scalar code", k, n);
        out[n] = 42;
        level[k]->unpack(have, out, n);
        assert_true(out[n] == 42);
        if (k == 0)
            memcpy(back, out, (size_t)n * sizeof(*out));
        assert_same_bits("unpacked", out, back, (size_t)n);
    }
}

/* Every width: what comes back is the nearest multiple of the group's scale. */
static void test_widths(void **state)
{
    uint64_t seed = 1;
    (void)state;
    for (int n = 1; n <= LONGEST; n++)
        for (int round = 0; round < 8; round++) {
            float *x = random_array(&seed, (size_t)n, powf(10, (float)random_int(&seed, -12, 12))), back[LONGEST];
            double want[LONGEST];
            for (int i = 0; i < n; i++)
                want[i] = (double)x[i];
            as_stored(PM_KV_Q8, want, n);
            there_and_back(x, n, back);
            for (int i = 0; i < n; i++) {
                float most = 0;
                for (int k = i / 64 * 64; k < n && k < i / 64 * 64 + 64; k++)
                    most = fmaxf(most, fabsf(x[k]));
                if ((double)back[i] != want[i] || !(fabsf(back[i] - x[i]) <= most * (0.5001f / 127)))
                    fail_msg("width %d, element %d: %g became %g, expected %g (the largest is %g)", n, i, (double)x[i],
                             (double)back[i], want[i], (double)most);
            }
            free(x);
        }
}

/* Groups do not touch each other; the largest magnitude of each comes back, with its sign. */
static void test_groups(void **state)
{
    float x[LONGEST] = {0}, back[LONGEST];
    (void)state;
    x[3] = -1e-3f;
    x[64] = 1e6f;
    x[127] = -4e5f;
    x[199] = 0.7f;
    there_and_back(x, LONGEST, back);
    for (int i = 0; i < LONGEST; i++)
        if (!(fabsf(back[i] - x[i]) <= fabsf(x[i]) * 1e-2f))
            fail_msg("element %d: %g became %g", i, (double)x[i], (double)back[i]);
}

/* The ends of the range, halves, zeros of both signs, and what is refused later on: levels agree on all of it. */
static void test_edges(void **state)
{
    static const struct {
        float most, other, back, other_back;
    } cases[] = {
        {0.0f, -0.0f, 0, 0},
        {127, 2.5f, 127, 2}, /* half goes to the even one */
        {127, -3.5f, 127, -4},
        {0x1p-100f, 0, 0x1p-100f, 0},
        {0x1p-101f, 0x1p-102f, 0, 0},
        {1e-45f, 0, 0, 0},
        {0x1.fffffep126f, -0x1.fffffep126f, 0x1.fffffep126f, -0x1.fffffep126f},
        {0x1p127f, 1, 0, 0},
        {INFINITY, 1, 0, 0},
        {NAN, 1, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < PM_COUNT(cases); i++)
        for (int n = 2; n <= 70; n += 17) {
            float x[LONGEST] = {0}, back[LONGEST];
            x[0] = cases[i].most;
            x[n - 1 < 63 ? n - 1 : 63] = cases[i].other;
            there_and_back(x, n, back);
            float other = back[n - 1 < 63 ? n - 1 : 63];
            if (!(fabsf(back[0] - cases[i].back) <= cases[i].back * 1e-6f) ||
                !(fabsf(other - cases[i].other_back) <= fabsf(cases[i].other_back) * 1e-6f))
                fail_msg("case %zu, width %d: %g and %g became %g and %g", i, n, (double)cases[i].most,
                         (double)cases[i].other, (double)back[0], (double)other);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_widths), cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
