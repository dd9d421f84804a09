#include "str.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pm_str_add(pm_str *str, const char *text, size_t len)
{
    if (str->failed)
        return;
    if (len >= SIZE_MAX / 4 || str->len >= SIZE_MAX / 4) {
        str->failed = true;
        return;
    }
    if (str->len + len + 1 > str->cap) {
        size_t cap = (str->len + len + 1) * 3 / 2 + 64;
        char *data = realloc(str->data, cap);
        if (!data) {
            str->failed = true;
            return;
        }
        str->data = data;
        str->cap = cap;
    }
    if (len)
        memcpy(str->data + str->len, text, len);
    str->len += len;
    str->data[str->len] = '\0';
}

void pm_str_text(pm_str *str, const char *text)
{
    pm_str_add(str, text, strlen(text));
}

void pm_str_print(pm_str *str, const char *format, ...)
{
    char line[1024];
    va_list list;
    va_start(list, format);
    int n = vsnprintf(line, sizeof(line), format, list);
    va_end(list);
    if (n < 0 || (size_t)n >= sizeof(line))
        str->failed = true;
    else
        pm_str_add(str, line, (size_t)n);
}

static int add_piece(const char *text, size_t len, void *str)
{
    pm_str_add(str, text, len);
    return ((pm_str *)str)->failed ? -1 : 0;
}

void pm_str_json(pm_str *str, json_t *value)
{
    /* Nine digits give a float back exactly. */
    if (!value ||
        json_dump_callback(value, add_piece, str, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) != 0)
        str->failed = true;
    json_decref(value);
}

void pm_str_free(pm_str *str)
{
    free(str->data);
    *str = (pm_str){0};
}
