/* What the machinery costs where there is nothing to compute: a region of the thread pool, and a layer of a model so
 * small that its arithmetic takes no time. The figures are for people to read; what is asserted leaves room for a
 * machine that is busy and for sanitizers. */
#include "base/pool.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <cmocka.h>

enum { RUNS = 2001 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the RUNS times, prints the median and the best; returns the median. */
static double report(const char *what, double *seconds)
{
    qsort(seconds, RUNS, sizeof(*seconds), ascending);
    print_message("%s: median %.2f us, best %.2f us\n", what, seconds[RUNS / 2] * 1e6, seconds[0] * 1e6);
    return seconds[RUNS / 2];
}

static void nothing(void *arg, int worker, int64_t first, int64_t last)
{
    (void)arg, (void)worker, (void)first, (void)last;
}

/* Ends when every worker has come, so that none can do the others' work. */
static void meet(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    atomic_int *missing = arg;
    atomic_fetch_sub(missing, (int)(last - first));
    for (int i = 1; atomic_load(missing) > 0; i++)
        if (i % 10000 == 0)
            sched_yield();
}

static void regions(void **state)
{
    (void)state;
    static double seconds[RUNS];
    pm_pool *pool = NULL;
    pm_error err;
    if (pm_pool_new(&pool, 2, &err) != PM_OK)
        fail_msg("%s", err.message);
    for (int i = 0; i < RUNS; i++) {
        double start = pm_now();
        pm_pool_run(pool, 2, 1, nothing, NULL);
        seconds[i] = pm_now() - start;
    }
    assert_true(report("a region of two empty pieces", seconds) < 2e-3);
    for (int i = 0; i < RUNS; i++) {
        atomic_int missing = 2;
        double start = pm_now();
        pm_pool_run(pool, 2, 1, meet, &missing);
        seconds[i] = pm_now() - start;
    }
    assert_true(report("a barrier that two threads must reach", seconds) < 20e-3);
    pm_pool_free(pool);
}

static void layers(void **state)
{
    (void)state;
    static double seconds[RUNS];
    pm_error err;
    pm_info info;
    pm_engine *engine = NULL;
    pm_session *session = NULL, *start = NULL;
    pm_engine_options options = {.threads = 2};
    if (pm_engine_open(&engine, SOURCE_DIR "/tests/oracles/qwen3_5_moe", &options, &err) != PM_OK)
        fail_msg("%s", err.message);
    pm_engine_info(engine, &info);
    assert_int_equal(pm_session_new(&start, engine, &err), PM_OK);
    for (int i = 0; i < RUNS; i++) {
        if (i % 32 == 0) { /* so that attention stays small, too */
            pm_session_free(session);
            assert_int_equal(pm_session_fork(&session, start, &err), PM_OK);
        }
        pm_work work = {.session = session, .tokens = (pm_token[]){1 + i % 100}, .n = 1};
        double before = pm_now();
        assert_int_equal(pm_step(engine, &work, 1, &err), PM_OK);
        seconds[i] = (pm_now() - before) / info.layers;
    }
    assert_true(report("a token through a layer of a tiny model", seconds) < 20e-3);
    pm_session_free(session);
    pm_session_free(start);
    pm_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(regions), cmocka_unit_test(layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
