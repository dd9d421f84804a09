#include "engine/stop.h"

#include <stdlib.h>
#include <string.h>

int pm_stop_init(pm_stop *stop, const char *const *strings, int n, pm_error *err)
{
    if (n < 0 || (n > 0 && !strings))
        return pm_fail(err, PM_ERR_INVALID, "the list of stop strings is missing");
    pm_stop made = {.strings = strings, .lengths = calloc((size_t)n + 1, sizeof(size_t)), .n = n, .found = -1};
    if (!made.lengths)
        return pm_fail_memory(err);
    for (int i = 0; i < n; i++) {
        made.lengths[i] = strings[i] ? strlen(strings[i]) : 0;
        bool empty = made.lengths[i] == 0;
        if (empty || !pm_utf8_valid(strings[i], made.lengths[i], NULL)) {
            pm_stop_free(&made);
            return pm_fail(err, PM_ERR_INVALID, "stop string %d is %s", i, empty ? "empty" : "not valid UTF-8");
        }
    }
    *stop = made;
    return PM_OK;
}

void pm_stop_free(pm_stop *stop)
{
    free(stop->lengths);
    *stop = (pm_stop){0};
}

/* The length of the longest stop string that ends at text[len], which is `found` then; 0: none. */
static size_t ending_at(pm_stop *stop, const char *text, size_t len)
{
    size_t longest = 0;
    for (int i = 0; i < stop->n; i++) {
        size_t n = stop->lengths[i];
        if (n <= len && n > longest && memcmp(text + len - n, stop->strings[i], n) == 0) {
            longest = n;
            stop->found = i;
        }
    }
    return longest;
}

/* The length of the longest end of text[0..len) with which a stop string begins. */
static size_t held_back(const pm_stop *stop, const char *text, size_t len)
{
    size_t longest = 0;
    for (int i = 0; i < stop->n; i++) {
        size_t n = stop->lengths[i] - 1 < len ? stop->lengths[i] - 1 : len;
        while (n > longest && memcmp(text + len - n, stop->strings[i], n) != 0)
            n--;
        if (n > longest)
            longest = n;
    }
    return longest;
}

bool pm_stop_scan(pm_stop *stop, const char *text, size_t seen, size_t len, size_t *final)
{
    if (stop->n == 0) {
        *final = len;
        return false;
    }
    for (size_t end = seen + 1; end <= len; end++) {
        size_t n = ending_at(stop, text, end);
        if (n) {
            *final = end - n;
            return true;
        }
    }
    *final = len - held_back(stop, text, len);
    return false;
}
