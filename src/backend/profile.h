/* Measures the operations of a backend: how often, how long, and what they cost (cost.h). */
#ifndef PM_PROFILE_H
#define PM_PROFILE_H

#include "backend/backend.h"

typedef struct pm_profiler pm_profiler;

/* From here on the operations of `backend` are measured; without a profiler there is nothing in their way. `type` is
 * that of all its caches. Freed with the backend. */
int pm_profiler_new(pm_profiler **out, pm_backend *backend, pm_kv_type type, pm_error *err);

/* What was measured since the beginning or the last reset. A call that failed does not count. */
void pm_profiler_read(const pm_profiler *profiler, pm_profile *out);
void pm_profiler_reset(pm_profiler *profiler);

#endif
