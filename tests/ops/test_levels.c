/* The levels of this processor: the best is the one that the argument names, if there is one, and at each the loops run
 * that measure how fast it reads and multiplies. */
#include "ops.h"

static const char *expected;

static void test_best(void **state)
{
    (void)state;
    char what[64];
    pm_backend *backend = cpu_backend(1, PM_SIMD_BEST);
    backend->ops->describe(backend, what, sizeof(what));
    backend->ops->free(backend);
    if (expected)
        assert_string_equal(what, expected);
    else
        print_message("%s\n", what);
}

static void test_yardsticks(void **state)
{
    (void)state;
    char memory[1000];
    memset(memory, 1, sizeof(memory));
    pm_span spans[] = {{memory, sizeof(memory)}, {memory + 1, 321}, {memory, 0}};
    for (int simd = PM_SIMD_SCALAR; simd <= PM_SIMD_I8MM; simd++) {
        if (!have_level((pm_simd)simd))
            continue;
        for (int precision = 0; precision < 2; precision++) {
            pm_backend *backend = NULL;
            pm_peak peak = {0};
            assert_int_equal(pm_backend_cpu_new(&backend, 2, (pm_simd)simd, (pm_precision)precision, NULL), PM_OK);
            backend->ops->measure_read(backend, spans, 3);
            backend->ops->measure_peak(backend, &peak);
            backend->ops->free(backend);
            assert_int_equal(peak.threads, 2);
            assert_true(peak.integer_ops > 0 && isfinite(peak.integer_ops));
            assert_true(peak.float_ops > 0 && isfinite(peak.float_ops));
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_best), cmocka_unit_test(test_yardsticks)};
    expected = argc > 1 ? argv[1] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
