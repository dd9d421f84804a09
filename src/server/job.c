#include "job.h"

void pm_job_cancel(pm_job *job)
{
    (void)job;
}

void pm_job_fail(pm_job *job, const pm_refusal *refusal)
{
    (void)job;
    (void)refusal;
}
