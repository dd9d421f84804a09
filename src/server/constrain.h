/* Answers held to a schema, or to calls of tools. */
#ifndef PM_CONSTRAIN_H
#define PM_CONSTRAIN_H

#include "job.h"

enum { PM_CONSTRAINTS_KEPT = 64 };

/* Makes the constraint that the request asks for, if any: job->constraint. False with a refusal. */
bool pm_job_constrain(pm_job *job, pm_refusal *refusal);

/* The job is over. */
void pm_job_release(pm_job *job);

/* Before the engine is closed. */
void pm_constraints_free(pm_server *server);

#endif
