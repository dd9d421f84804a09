/* The pool of threads, and how many there should be. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "base/pool.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

/* ---- floating-point state ---- */

#if defined(__x86_64__)

typedef unsigned float_state;
enum { DEFAULT_MXCSR = 0x1f80 }; /* every exception masked, round to nearest, denormals kept */

/* The five exception flags say nothing about how to compute, so they alone do not make a state differ. */
static float_state float_default(void)
{
    unsigned state = _mm_getcsr();
    if ((state & ~0x3fu) != DEFAULT_MXCSR)
        _mm_setcsr(DEFAULT_MXCSR);
    return state;
}

static void float_restore(float_state state)
{
    if ((state & ~0x3fu) != DEFAULT_MXCSR)
        _mm_setcsr(state);
}

#else

typedef fenv_t float_state;

static float_state float_default(void)
{
    fenv_t state;
    fegetenv(&state);
    fesetenv(FE_DFL_ENV);
    return state;
}

static void float_restore(float_state state)
{
    fesetenv(&state);
}

#endif

/* ---- the pool ---- */

/* How a run works: the caller fills in the job, then publishes it by giving `state` a new generation with the OPEN bit.
 * Workers that see it enter (one more in the low bits, only while OPEN), take pieces until none is left, and leave. The
 * caller takes pieces too, then closes, and waits only for those that have entered: a worker that is asleep or was not
 * given a processor holds nobody up, and finds the run closed when it arrives. */
enum { INSIDE = 0xffff, OPEN = 1 << 16, GENERATION = 1 << 17, MAX_THREADS = 1024 };

static const double SPIN_SECONDS = 200e-6; /* longer than the gap between two steps of decoding */
static const double CROWDED_SPIN_SECONDS =
    5e-6; /* with fewer processors than workers, spinning takes from the others */

/* A worker's part of the indices: one stretch, so that what it reads and prefetches goes on from piece to piece. Who
 * has no more of its own takes pieces of the others'. */
struct share {
    alignas(64) atomic_int_fast64_t next; /* first index not taken yet */
    int64_t end;
};

struct pm_pool {
    int threads, started;
    double spin_seconds;     /* of a worker, before it sleeps */
    unsigned patience;       /* spins of the caller for the last workers, before it gives its processor away */
    pthread_t *handles;      /* [started] workers 1, 2, ... */
    struct pool_seat *seats; /* [threads] */
    pm_pool_fn *fn;          /* the job; written only while nobody is inside */
    void *arg;
    int64_t grain;
    struct share *shares;                   /* [threads] */
    alignas(64) atomic_uint_fast64_t state; /* generation, OPEN, number of workers inside */
    alignas(64) atomic_int sleepers;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t wake;
};

struct pool_seat {
    pm_pool *pool;
    int worker;
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* The next piece of a share: half of what is left, and at least `grain`. False when nothing is. */
static bool take(struct share *share, int64_t grain, int64_t *first, int64_t *last)
{
    int64_t next = atomic_load_explicit(&share->next, memory_order_relaxed), n, left;
    do {
        left = share->end - next;
        if (left <= 0)
            return false;
        n = left / (2 * grain) * grain;
        n = n > 0 ? n : left < grain ? left : grain;
    } while (!atomic_compare_exchange_weak_explicit(&share->next, &next, next + n, memory_order_relaxed,
                                                    memory_order_relaxed));
    *first = next;
    *last = next + n;
    return true;
}

static void take_pieces(pm_pool *pool, int worker)
{
    int64_t first, last;
    for (int i = 0, of = worker; i < pool->threads; i++, of = of + 1 < pool->threads ? of + 1 : 0)
        while (take(&pool->shares[of], pool->grain, &first, &last))
            pool->fn(pool->arg, worker, first, last);
}

/* Shares are whole grains, and differ by one at most. */
static void deal_shares(pm_pool *pool, int64_t n, int64_t grain)
{
    int64_t grains = (n + grain - 1) / grain, first = 0;
    for (int i = 0; i < pool->threads; i++) {
        int64_t end = first + (grains / pool->threads + (i < grains % pool->threads)) * grain;
        pool->shares[i].end = end < n ? end : n;
        atomic_store_explicit(&pool->shares[i].next, first, memory_order_relaxed);
        first = pool->shares[i].end;
    }
}

/* Waits for a generation other than `seen`: spins, then sleeps. Returns the state, or 0 when the pool is to end. */
static uint_fast64_t wait_for_run(pm_pool *pool, uint_fast64_t seen)
{
    double deadline = 0;
    for (unsigned i = 1;; i++) {
        uint_fast64_t state = atomic_load(&pool->state);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
            return 0;
        if (state / GENERATION != seen)
            return state;
        relax();
        if (i % 32)
            continue;
        double now = pm_now();
        if (deadline == 0)
            deadline = now + pool->spin_seconds;
        if (now > deadline)
            break;
    }
    /* Counted before `state` is looked at again: either this sees the new run, or its caller sees the sleeper. */
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    uint_fast64_t state;
    while ((state = atomic_load(&pool->state)) / GENERATION == seen && !atomic_load(&pool->stop))
        pthread_cond_wait(&pool->wake, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->stop) ? 0 : state;
}

static void *worker_main(void *arg)
{
    struct pool_seat *seat = arg;
    pm_pool *pool = seat->pool;
    uint_fast64_t seen = 0;
    float_default();
    for (;;) {
        uint_fast64_t state = wait_for_run(pool, seen);
        if (!state)
            return NULL;
        seen = state / GENERATION;
        while (state / GENERATION == seen && state & OPEN) {
            if (!atomic_compare_exchange_weak(&pool->state, &state, state + 1))
                continue;
            take_pieces(pool, seat->worker);
            atomic_fetch_sub(&pool->state, 1);
            break;
        }
    }
}

static void wake_all(pm_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
}

void pm_pool_run(pm_pool *pool, int64_t n, int64_t grain, pm_pool_fn *fn, void *arg)
{
    if (n <= 0)
        return;
    float_state outside = float_default();
    if (n <= grain || pool->threads == 1) {
        for (int64_t first = 0; first < n; first += grain)
            fn(arg, 0, first, n - first < grain ? n : first + grain);
        float_restore(outside);
        return;
    }
    pool->fn = fn;
    pool->arg = arg;
    pool->grain = grain;
    deal_shares(pool, n, grain);
    uint_fast64_t generation = atomic_load_explicit(&pool->state, memory_order_relaxed) / GENERATION + 1;
    atomic_store(&pool->state, generation * GENERATION + OPEN);
    if (atomic_load(&pool->sleepers) > 0)
        wake_all(pool);
    take_pieces(pool, 0);
    atomic_fetch_sub(&pool->state, OPEN);
    for (unsigned i = 1; atomic_load(&pool->state) & INSIDE; i++)
        if (i < pool->patience)
            relax();
        else
            sched_yield();
    float_restore(outside);
}

void pm_pool_free(pm_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->stop, true);
    wake_all(pool);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
    free(pool->seats);
    free(pool->shares);
    free(pool);
}

static int start_workers(pm_pool *pool, pm_error *err)
{
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    int code = 0;
    sigfillset(&all);
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE,
                                 SIGILL}; /* a worker's own, which the process may want to handle */
    for (size_t i = 0; i < PM_COUNT(faults); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 0; i < pool->threads - 1 && !code; i++) {
        pool->seats[i] = (struct pool_seat){pool, i + 1};
        code = pthread_create(&pool->handles[i], NULL, worker_main, &pool->seats[i]);
        pool->started += !code;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code)
        return pm_fail(err, PM_ERR_MEMORY, "cannot start thread %d of %d: %s", pool->started + 2, pool->threads,
                       strerror(code));
    return PM_OK;
}

int pm_pool_new(pm_pool **out, int threads, pm_error *err)
{
    if (threads < 1 || threads > MAX_THREADS)
        return pm_fail(err, PM_ERR_INVALID, "%d threads asked for; between 1 and %d are possible", threads,
                       MAX_THREADS);
    pm_pool *pool = aligned_alloc(alignof(pm_pool), sizeof(pm_pool));
    if (!pool)
        return pm_fail_memory(err);
    memset(pool, 0, sizeof(*pool));
    pool->threads = threads;
    bool crowded = threads > pm_pool_cores();
    pool->spin_seconds = crowded ? CROWDED_SPIN_SECONDS : SPIN_SECONDS;
    pool->patience = crowded ? 16 : 1024;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pool->handles = calloc((size_t)threads, sizeof(*pool->handles));
    pool->seats = calloc((size_t)threads, sizeof(*pool->seats));
    pool->shares = aligned_alloc(alignof(struct share), (size_t)threads * sizeof(*pool->shares));
    int status = PM_OK;
    if (pool->handles && pool->seats && pool->shares)
        status = start_workers(pool, err);
    else
        status = pm_fail_memory(err);
    if (status == PM_OK)
        *out = pool;
    else
        pm_pool_free(pool);
    return status;
}

int pm_pool_threads(const pm_pool *pool)
{
    return pool->threads;
}

/* ---- how many processors there are for this process ---- */

#ifdef __linux__

/* The first line of a small file of the kernel's, without its newline; false when there is none. */
static bool read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "re");
    bool ok = file && fgets(line, size, file);
    if (file)
        fclose(file);
    if (ok)
        line[strcspn(line, "\n")] = 0;
    return ok;
}

/* Processors whose first sibling (thread of the same core) has not been counted yet. */
static int affine_cores(void)
{
    enum { LIMIT = 8192 };
    cpu_set_t allowed[LIMIT / CPU_SETSIZE], cores[LIMIT / CPU_SETSIZE];
    memset(cores, 0, sizeof(cores));
    if (sched_getaffinity(0, sizeof(allowed), allowed) != 0)
        return 0;
    for (int cpu = 0; cpu < LIMIT; cpu++) {
        if (!CPU_ISSET_S((size_t)cpu, sizeof(allowed), allowed))
            continue;
        char path[128], line[256], *end;
        long first = cpu;
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        if (read_line(path, line, sizeof(line))) { /* such as "0,64" or "0-1" */
            first = strtol(line, &end, 10);
            if (end == line || first < 0 || first >= LIMIT)
                first = cpu;
        }
        CPU_SET_S((size_t)first, sizeof(cores), cores);
    }
    return CPU_COUNT_S(sizeof(cores), cores);
}

/* Whole processors that a quota of control groups (version 2: cpu.max is "quota period" or "max period") leaves, in the
 * process's group or any group above it; INT32_MAX when there is none. */
static int quota_cores(void)
{
    char line[512], group[512] = "", path[1100];
    int cores = INT32_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, "0::", 3) == 0)
            snprintf(group, sizeof(group), "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    if (file)
        fclose(file);
    for (;;) {
        snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", group);
        if (read_line(path, line, sizeof(line))) {
            char *after = line;
            long long quota = strtoll(line, &after, 10), period = strtoll(after, NULL, 10);
            if (quota > 0 && period > 0 && quota / period < cores)
                cores = quota < period ? 1 : (int)(quota / period);
        }
        char *slash = strrchr(group, '/');
        if (!slash)
            return cores;
        *slash = 0;
    }
}

int pm_pool_cores(void)
{
    int cores = affine_cores(), quota = quota_cores();
    if (cores < 1)
        cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (cores > quota)
        cores = quota;
    return cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : cores;
}

#else

int pm_pool_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores < 1 ? 1 : cores > MAX_THREADS ? MAX_THREADS : (int)cores;
}

#endif
