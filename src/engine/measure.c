/* What operations cost and what the machine can do, side by side. */
#include "engine/engine.h"

#include <stdlib.h>

/* Reading is measured over at least this much, where the model has it, and over this many times the last-level cache:
 * little enough of it is then found there. */
static const size_t READ_BYTES = (size_t)1 << 30;
enum { CACHES = 4, PASSES = 3 };
static const double READ_SECONDS = 0.02; /* of passes, at the least */

int pm_engine_profile(const pm_engine *engine, pm_profile *out, pm_error *err)
{
    if (!engine->profiler)
        return pm_fail(err, PM_ERR_INVALID, "the engine was opened without the option profile");
    pm_profiler_read(engine->profiler, out);
    return PM_OK;
}

void pm_engine_profile_reset(pm_engine *engine)
{
    if (engine->profiler)
        pm_profiler_reset(engine->profiler);
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const pm_span *)a)->data, y = (uintptr_t)((const pm_span *)b)->data;
    return (x > y) - (x < y);
}

/* The weights as long stretches of memory, up to `most` bytes; *n of them. NULL when out of memory. */
static pm_span *weight_spans(const pm_checkpoint *checkpoint, size_t most, size_t *n)
{
    size_t count = pm_checkpoint_count(checkpoint), total = 0;
    pm_span *spans = calloc(count + 1, sizeof(*spans));
    if (!spans)
        return NULL;
    for (size_t i = 0; i < count; i++)
        spans[i] = (pm_span){pm_checkpoint_at(checkpoint, i)->data, pm_checkpoint_at(checkpoint, i)->bytes};
    qsort(spans, count, sizeof(*spans), by_address);
    *n = 0;
    for (size_t i = 0; i < count && total < most; i++) {
        pm_span *last = *n ? &spans[*n - 1] : NULL, next = spans[i];
        next.bytes = next.bytes < most - total ? next.bytes : most - total;
        total += next.bytes;
        if (last && (const char *)last->data + last->bytes == next.data)
            last->bytes += next.bytes;
        else
            spans[(*n)++] = next;
    }
    return spans;
}

/* Bytes a second of the fastest pass: nothing makes a machine faster than it is. The first pass, which may bring them
 * in from a disk, does not count. */
static double read_rate(pm_backend *backend, const pm_span *spans, size_t n)
{
    double bytes = 0, best = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (double)spans[i].bytes;
    backend->ops->measure_read(backend, spans, n);
    double begin = pm_now(), now = begin;
    for (int pass = 0; pass < PASSES || now - begin < READ_SECONDS; pass++) {
        double start = now;
        backend->ops->measure_read(backend, spans, n);
        now = pm_now();
        best = bytes / (now - start) > best ? bytes / (now - start) : best;
    }
    return best;
}

int pm_engine_measure(pm_engine *engine, pm_limits *out, pm_error *err)
{
    size_t cache = pm_cache_bytes(), most = CACHES * cache > READ_BYTES ? CACHES * cache : READ_BYTES, n;
    if (!engine->backend->ops->measure_peak)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "the device %s does not measure itself", engine->backend->ops->name);
    int status = pm_checkpoint_check(engine->checkpoint, err);
    if (status != PM_OK)
        return status;
    pm_span *spans = weight_spans(engine->checkpoint, most, &n);
    if (!spans)
        return pm_fail_memory(err);
    pm_peak peak;
    engine->backend->ops->measure_peak(engine->backend, &peak);
    *out = (pm_limits){.threads = peak.threads,
                       .read_bytes_per_second = read_rate(engine->backend, spans, n),
                       .from_cache = pm_checkpoint_bytes(engine->checkpoint) <= cache,
                       .integer_ops_per_second = peak.integer_ops,
                       .float_ops_per_second = peak.float_ops};
    free(spans);
    return PM_OK;
}
