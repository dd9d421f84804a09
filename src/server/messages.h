/* POST /v1/messages: how its two files meet. */
#ifndef PM_MESSAGES_H
#define PM_MESSAGES_H

#include "fields.h"
#include "job.h"

extern const pm_field pm_messages_fields[];

/* Turns the system prompt, messages and tools of a request into those of a chat. */
bool pm_messages_read(pm_job *job, pm_refusal *refusal);

#endif
