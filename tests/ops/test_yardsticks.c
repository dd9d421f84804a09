/* How fast the processor reads and multiplies, as the backend measures it: at every level the loops run and count. */
#include "ops.h"

static void test_levels(void **state)
{
    (void)state;
    char memory[1000];
    memset(memory, 1, sizeof memory);
    pm_span spans[] = {{memory, sizeof memory}, {memory + 1, 321}, {memory, 0}};
    for (int simd = PM_SIMD_SCALAR; simd <= PM_SIMD_I8MM; simd++) {
        if (!have_level((pm_simd)simd))
            continue;
        for (int precision = 0; precision < 2; precision++) {
            pm_backend *backend = NULL;
            pm_peak peak = {0};
            assert_int_equal(pm_backend_cpu_new(&backend, 2, (pm_simd)simd, (pm_precision)precision, NULL), PM_OK);
            backend->ops->measure_read(backend, spans, 3);
            backend->ops->measure_peak(backend, &peak);
            assert_int_equal(peak.threads, 2);
            assert_true(peak.integer_ops > 0 && isfinite(peak.integer_ops));
            assert_true(peak.float_ops > 0 && isfinite(peak.float_ops));
            backend->ops->free(backend);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
