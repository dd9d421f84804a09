/* The thread pool: every index once, whatever the number of threads; floating-point state; idle workers sleep. */
#include "base/pool.h"

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

static const int thread_counts[] = {1, 2, 3, 5, 16};

static pm_pool *pool_new(int threads)
{
    pm_pool *pool = NULL;
    pm_error err;
    if (pm_pool_new(&pool, threads, &err) != PM_OK)
        fail_msg("no pool: %s", err.message);
    return pool;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

typedef struct counts {
    int64_t n, grain;
    int threads;
    int *seen; /* [n] */
    atomic_bool wrong;
} counts;

static void count(void *arg, int worker, int64_t first, int64_t last)
{
    counts *c = arg;
    if (worker < 0 || worker >= c->threads || first < 0 || first >= last || last > c->n ||
        (last < c->n && (last - first) % c->grain))
        atomic_store(&c->wrong, true);
    for (int64_t i = first; i < last; i++)
        c->seen[i]++; /* unsynchronised on purpose: each index belongs to one piece */
}

static void every_index_once(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 7, 64, 1000}, grains[] = {1, 3, 64, 5000};
    for (size_t t = 0; t < PM_COUNT(thread_counts); t++) {
        pm_pool *pool = pool_new(thread_counts[t]);
        assert_int_equal(pm_pool_threads(pool), thread_counts[t]);
        for (size_t s = 0; s < PM_COUNT(sizes); s++)
            for (size_t g = 0; g < PM_COUNT(grains); g++) {
                counts c = {.n = sizes[s], .grain = grains[g], .threads = thread_counts[t]};
                c.seen = calloc((size_t)sizes[s] + 1, sizeof(int));
                for (int round = 1; round <= 20; round++) {
                    pm_pool_run(pool, c.n, c.grain, count, &c);
                    for (int64_t i = 0; i < c.n; i++)
                        assert_int_equal(c.seen[i], round);
                }
                assert_false(c.wrong);
                free(c.seen);
            }
        pm_pool_free(pool);
    }
}

/* Runs that follow each other at once, after a short gap, and after the workers have gone to sleep. */
static void after_any_gap(void **state)
{
    (void)state;
    for (size_t t = 0; t < PM_COUNT(thread_counts); t++) {
        pm_pool *pool = pool_new(thread_counts[t]);
        int seen[64] = {0};
        counts c = {.n = 64, .grain = 1, .threads = thread_counts[t], .seen = seen};
        for (int round = 0; round < 300; round++) {
            if (round % 100 == 50)
                pause_ms(3);
            if (round % 10 == 5)
                nanosleep(&(struct timespec){0, 1000 * (round % 97)}, NULL);
            pm_pool_run(pool, c.n, c.grain, count, &c);
        }
        for (int i = 0; i < 64; i++)
            assert_int_equal(seen[i], 300);
        pm_pool_free(pool);
    }
}

static void sum_squares(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    double *squares = arg;
    for (int64_t i = first; i < last; i++)
        squares[i] = (double)i * (double)i;
}

static void results_reach_the_caller(void **state)
{
    (void)state;
    enum { N = 4096 };
    double *squares = malloc(N * sizeof(*squares));
    pm_pool *pool = pool_new(4);
    for (int round = 0; round < 50; round++) {
        memset(squares, 0, N * sizeof(*squares));
        pm_pool_run(pool, N, 16, sum_squares, squares);
        for (int i = 0; i < N; i++)
            assert_true(squares[i] == (double)i * i);
    }
    pm_pool_free(pool);
    free(squares);
}

/* ---- floating-point state ---- */

typedef struct rounding {
    volatile float one, tiny;
    atomic_int wrong;
} rounding;

static void check_rounding(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    rounding *r = arg;
    for (int64_t i = first; i < last; i++)
        if (r->one + r->tiny != 1.0f || r->one * 0x1p-140f == 0)
            atomic_fetch_add(&r->wrong, 1);
}

static void float_state_is_ours_and_is_given_back(void **state)
{
    (void)state;
    for (size_t t = 0; t < PM_COUNT(thread_counts); t++) {
        pm_pool *pool = pool_new(thread_counts[t]);
        rounding r = {.one = 1, .tiny = 0x1p-30f};
        fesetround(FE_UPWARD);
        pm_pool_run(pool, 100, 1, check_rounding, &r);
        pm_pool_run(pool, 1, 1, check_rounding, &r);
        volatile float sum = r.one + r.tiny; /* stored before the rounding changes */
        fesetround(FE_TONEAREST);
        assert_true(sum > 1.0f);
        assert_int_equal(r.wrong, 0);
        pm_pool_free(pool);
    }
}

/* ---- sleep ---- */

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void idle_workers_sleep(void **state)
{
    (void)state;
    int seen[64] = {0};
    pm_pool *pool = pool_new(5);
    counts c = {.n = 64, .grain = 1, .threads = 5, .seen = seen};
    pm_pool_run(pool, c.n, c.grain, count, &c);
    double before = cpu_seconds();
    pause_ms(200);
    double used = cpu_seconds() - before;
    if (used > 0.02)
        fail_msg("an idle pool of 5 used %.1f ms of processor time in 200 ms", used * 1e3);
    pm_pool_free(pool);
}

/* ---- several pools, and limits ---- */

static void *use_a_pool(void *arg)
{
    (void)arg;
    int seen[64] = {0};
    pm_pool *pool = pool_new(3);
    counts c = {.n = 64, .grain = 2, .threads = 3, .seen = seen};
    for (int round = 0; round < 200; round++)
        pm_pool_run(pool, c.n, c.grain, count, &c);
    pm_pool_free(pool);
    return seen[63] == 200 && !c.wrong ? "right" : NULL;
}

static void pools_side_by_side(void **state)
{
    (void)state;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_a_pool, NULL), 0);
    for (int i = 0; i < 3; i++) {
        void *answer = NULL;
        pthread_join(threads[i], &answer);
        assert_non_null(answer);
    }
}

static void limits(void **state)
{
    (void)state;
    pm_error err;
    pm_pool *pool = NULL;
    assert_in_range(pm_pool_cores(), 1, 1024);
    assert_int_equal(pm_pool_new(&pool, 0, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "0 threads"));
    assert_int_equal(pm_pool_new(&pool, 100000, &err), PM_ERR_INVALID);
    assert_null(pool);
    pm_pool_free(NULL);
    for (int i = 0; i < 50; i++) /* begin and end at once */
        pm_pool_free(pool_new(8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_once),
        cmocka_unit_test(after_any_gap),
        cmocka_unit_test(results_reach_the_caller),
        cmocka_unit_test(float_state_is_ours_and_is_given_back),
        cmocka_unit_test(idle_workers_sleep),
        cmocka_unit_test(pools_side_by_side),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
