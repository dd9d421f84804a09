/* Stop strings in a growing text.
 *
 * The first stop string to be complete ends the text where it begins; of several complete at the same byte, the longest
 * counts. That is decided byte by byte, so it does not depend on how the text arrived. Text that may still become a
 * stop string is not final. */
#ifndef PM_STOP_H
#define PM_STOP_H

#include "base/base.h"

typedef struct pm_stop {
    const char *const *strings; /* borrowed */
    size_t *lengths;
    int n;
    int found; /* which string is complete; -1: none */
} pm_stop;

/* An empty string, and one that is not UTF-8, are refused. */
int pm_stop_init(pm_stop *stop, const char *const *strings, int n, pm_error *err);
void pm_stop_free(pm_stop *stop);

/* Looks at text[0..len), of which `seen` bytes were looked at before. True when a stop string is complete; *final is
 * then where it begins, and otherwise how many bytes can no longer become part of one. */
bool pm_stop_scan(pm_stop *stop, const char *text, size_t seen, size_t len, size_t *final);

#endif
