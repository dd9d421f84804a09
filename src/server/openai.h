/* What OpenAI's protocols have in common. */
#ifndef PM_OPENAI_H
#define PM_OPENAI_H

#include "job.h"
#include "state.h"

json_t *pm_openai_usage(const pm_job *job);
const char *pm_openai_finish(const pm_choice *choice);

/* An answer or a piece of one: what is around its choices. */
json_t *pm_openai_object(const pm_job *job, const char *object, json_t *choices);

/* Sends a piece of one choice, to which index, logprobs and the reason of the end (NULL: none yet) are added. */
void pm_openai_chunk(pm_choice *choice, const char *object, json_t *body, const char *finish);

/* Ends a stream, with the usage where that was asked for. */
void pm_openai_done(pm_job *job, const char *object);
void pm_openai_broken(pm_job *job, const pm_refusal *refusal);

#endif
