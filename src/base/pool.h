/* A pool of threads that carry out one function together. Worker 0 is the caller. Between runs the others spin briefly,
 * then sleep. */
#ifndef PM_POOL_H
#define PM_POOL_H

#include "base/base.h"

typedef struct pm_pool pm_pool;

/* Physical cores that this process may use (affinity and cgroup quota respected), at least 1. */
int pm_pool_cores(void);

/* `threads` >= 1 workers, the caller included. */
int pm_pool_new(pm_pool **out, int threads, pm_error *err);
void pm_pool_free(pm_pool *pool);
int pm_pool_threads(const pm_pool *pool);

/* Calls fn(arg, first, last) until [0, n) is covered, on all workers, in pieces of `grain` indices (>= 1) or a multiple
 * of that, large ones first, and returns when all are done. Which worker gets which piece is not defined; results must
 * not depend on it. Floating-point state is the default (round to nearest, denormals kept) inside fn and restored for
 * the caller. Runs inline when one piece is enough. */
typedef void pm_pool_fn(void *arg, int worker, int64_t first, int64_t last);
void pm_pool_run(pm_pool *pool, int64_t n, int64_t grain, pm_pool_fn *fn, void *arg);

#endif
