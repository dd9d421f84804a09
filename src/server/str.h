/* A growing string. */
#ifndef PM_SERVER_STR_H
#define PM_SERVER_STR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Zero-initialised is empty. Once memory ran out `failed` stays set and nothing more is added. */
typedef struct pm_str {
    char *data; /* terminated, or NULL while nothing was added */
    size_t len, cap;
    bool failed;
} pm_str;

void pm_str_add(pm_str *str, const char *text, size_t len);
void pm_str_text(pm_str *str, const char *text); /* terminated */
void pm_str_print(pm_str *str, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds a value as JSON text and drops the reference; a NULL value is a failure. */
void pm_str_json(pm_str *str, json_t *value);

void pm_str_free(pm_str *str);

#endif
