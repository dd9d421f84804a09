/* Fields that several protocols have, read the same way: for tables of fields whose target is a pm_ask. */
#ifndef PM_ASK_H
#define PM_ASK_H

#include "fields.h"
#include "job.h"

#include <stddef.h>

#define PM_ASK(member) offsetof(pm_ask, member)

/* Readers for PM_FIELD_READ. */
bool pm_read_stop(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_logit_bias(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_seed(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_max_tokens(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_top_k(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_top_p(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_stream_options(void *ask, const char *name, json_t *value, pm_refusal *refusal);

/* Of form.c. A chat's forms are {"type": "json_schema", "json_schema": {"schema": ...}}, those of other protocols have
 * the schema in themselves. */
bool pm_read_tool_choice(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_anthropic_choice(pm_ask *ask, const char *name, const json_t *value, pm_refusal *refusal);
bool pm_read_parallel_calls(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_response_format(void *ask, const char *name, json_t *value, pm_refusal *refusal);
bool pm_read_format(void *ask, const char *name, json_t *value, pm_refusal *refusal);

/* What every protocol may say of sampling, beyond what its own documentation has: rows of a table. */
#define PM_SAMPLING_EXTENSIONS                                                                                         \
    PM_READ("top_k", pm_read_top_k), PM_FLOAT("min_p", PM_ASK(sampling.min_p), 0, 1),                                  \
        PM_FLOAT("repetition_penalty", PM_ASK(sampling.repetition_penalty), 0.01, 100),                                \
        PM_FLOAT("xtc_probability", PM_ASK(sampling.xtc_probability), 0, 1),                                           \
        PM_FLOAT("xtc_threshold", PM_ASK(sampling.xtc_threshold), 0, 1), PM_BOOL("ignore_eos", PM_ASK(ignore_eos))

#endif
