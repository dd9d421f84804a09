/* Yardsticks for the other files: how fast this processor reads memory and multiplies, with the threads and the
 * instructions that operations use. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- scalar loops ---- */

static uint64_t read_scalar(const void *data, size_t bytes)
{
    const char *p = data;
    uint64_t sum[4] = {0}, word[4];
    size_t i = 0;
    for (; i + sizeof(word) <= bytes; i += sizeof(word)) {
        memcpy(word, p + i, sizeof(word));
        for (int j = 0; j < 4; j++)
            sum[j] ^= word[j];
    }
    for (; i < bytes; i++)
        sum[0] ^= (unsigned char)p[i];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

enum { CHAINS = 8 /* independent, so that none waits for another */ };

static uint64_t integers_scalar(int rounds)
{
    uint32_t acc[CHAINS] = {1, 2, 3, 4, 5, 6, 7, 8}, factor = (uint32_t)rounds | 1;
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = acc[j] * factor + (uint32_t)i;
    uint64_t sum = 0;
    for (int j = 0; j < CHAINS; j++)
        sum += acc[j];
    return sum;
}

static uint64_t floats_scalar(int rounds)
{
    float acc[CHAINS] = {1, 2, 3, 4, 5, 6, 7, 8}, factor = 1.0f / (float)(rounds + 1), sum = 0;
    for (int i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++)
            acc[j] = fmaf(acc[j], factor, 1.0f);
    for (int j = 0; j < CHAINS; j++)
        sum += acc[j];
    return (uint64_t)sum;
}

static const pm_measure_kernels measure_scalar = {
    read_scalar, integers_scalar, floats_scalar, {2 * CHAINS, 2 * CHAINS}, 2 * CHAINS};

static const pm_measure_kernels *kernels_for(pm_simd simd)
{
#if defined(__x86_64__)
    if (simd >= PM_SIMD_AMX)
        return &pm_measure_amx;
    if (simd >= PM_SIMD_AVX512)
        return &pm_measure_avx512;
    if (simd >= PM_SIMD_AVX2)
        return &pm_measure_avx2;
#elif defined(__aarch64__)
    if (simd >= PM_SIMD_NEON)
        return simd == PM_SIMD_I8MM ? &pm_measure_i8mm : simd == PM_SIMD_DOT ? &pm_measure_dot : &pm_measure_neon;
#endif
    (void)simd;
    return &measure_scalar;
}

/* ---- on all threads ---- */

typedef struct read_job {
    const pm_measure_kernels *kernels;
    const char *data;
    atomic_uint_fast64_t sum;
} read_job;

static void read_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    read_job *job = arg;
    atomic_fetch_xor_explicit(&job->sum, job->kernels->read(job->data + first, (size_t)(last - first)),
                              memory_order_relaxed);
}

void pm_cpu_measure_read(pm_backend *backend, const pm_span *spans, size_t n)
{
    enum { PIECES = 8 /* a thread, at least */, MOST = 1 << 20, LINE = 64 };
    const pm_cpu *cpu = (const pm_cpu *)backend;
    read_job job = {.kernels = kernels_for(cpu->simd)};
    for (size_t i = 0; i < n; i++) {
        int64_t bytes = (int64_t)spans[i].bytes, piece = bytes / (pm_pool_threads(cpu->pool) * PIECES) / LINE * LINE;
        job.data = spans[i].data;
        pm_pool_run(cpu->pool, bytes, piece < LINE ? LINE : piece > MOST ? MOST : piece, read_piece, &job);
    }
}

typedef struct peak_job {
    uint64_t (*loop)(int rounds);
    int rounds;
    atomic_uint_fast64_t sum;
} peak_job;

static void peak_piece(void *arg, int worker, int64_t first, int64_t last)
{
    (void)worker;
    peak_job *job = arg;
    for (int64_t i = first; i < last; i++)
        atomic_fetch_xor_explicit(&job->sum, job->loop(job->rounds), memory_order_relaxed);
}

/* Rounds a second of a loop on all threads: the best of a few trials, since nothing makes a processor faster than it
 * is. */
static double peak_rate(const pm_cpu *cpu, uint64_t (*loop)(int rounds))
{
    enum { TRIALS = 5, PIECES = 16 /* a thread, so that a thread that comes late holds nobody up */ };
    static const double PIECE_SECONDS = 50e-6;
    peak_job job = {.loop = loop, .rounds = 4096};
    double best = 0, start = pm_now();
    peak_piece(&job, 0, 0, 1);
    double once = pm_now() - start;
    if (once > 0 && once < PIECE_SECONDS)
        job.rounds = (int)(job.rounds * (PIECE_SECONDS / once < 100 ? PIECE_SECONDS / once : 100));
    int64_t pieces = (int64_t)pm_pool_threads(cpu->pool) * PIECES;
    for (int i = 0; i < TRIALS; i++) {
        start = pm_now();
        pm_pool_run(cpu->pool, pieces, 1, peak_piece, &job);
        double rate = (double)job.rounds * (double)pieces / (pm_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

void pm_cpu_measure_peak(pm_backend *backend, pm_peak *out)
{
    const pm_cpu *cpu = (const pm_cpu *)backend;
    const pm_measure_kernels *kernels = kernels_for(cpu->simd);
    *out = (pm_peak){.threads = pm_pool_threads(cpu->pool),
                     .integer_ops = kernels->integer_ops[cpu->precision] * peak_rate(cpu, kernels->integers),
                     .float_ops = kernels->float_ops * peak_rate(cpu, kernels->floats)};
}
