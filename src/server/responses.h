/* POST /v1/responses: how its two files meet. */
#ifndef PM_RESPONSES_H
#define PM_RESPONSES_H

#include "fields.h"
#include "job.h"

extern const pm_field pm_responses_fields[];

/* Turns the input of a request into messages, its tools into those of a chat. */
bool pm_responses_read(pm_job *job, pm_refusal *refusal);

#endif
