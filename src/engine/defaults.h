/* What a model's generation_config.json says of its answers. */
#ifndef PM_DEFAULTS_H
#define PM_DEFAULTS_H

#include "base/base.h"

#include <jansson.h>

typedef struct pm_defaults {
    pm_sampling sampling;
    size_t max_tokens;   /* max_new_tokens; 0: it says nothing */
    char unapplied[256]; /* settings that would change answers and are not applied, such as "num_beams = 4" */
} pm_defaults;

/* Reads them. `settings` is the parsed file, or NULL when there is none. */
int pm_defaults_read(const json_t *settings, pm_defaults *out, pm_error *err);

#endif
