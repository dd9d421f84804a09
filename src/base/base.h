/* What every layer uses: errors, checked sizes, growable buffers, arenas, names, files, the clock. */
#ifndef PM_BASE_H
#define PM_BASE_H

#include "polymath.h"

#include <stdarg.h>

#define PM_COUNT(array) (sizeof(array) / sizeof(*(array)))

/* Fills `err` (may be NULL) and returns `code`, so that a caller can write `return pm_fail(...)`. Newlines and other
 * control characters that came in from a file are shown as '?'. */
int pm_fail(pm_error *err, pm_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int pm_fail_memory(pm_error *err); /* PM_ERR_MEMORY, "out of memory" */

/* *out = a * b or a + b; false on overflow. */
bool pm_mul(size_t a, size_t b, size_t *out);
bool pm_add(size_t a, size_t b, size_t *out);

/* ---- growable bytes; zero-initialised is empty ---- */
typedef struct pm_buf {
    char *data; /* always terminated by a 0 that len does not count, once not NULL */
    size_t len, cap;
} pm_buf;
int pm_buf_reserve(pm_buf *buf, size_t more); /* PM_OK or PM_ERR_MEMORY, as the two below */
int pm_buf_add(pm_buf *buf, const void *data, size_t n);
int pm_buf_printf(pm_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pm_buf_free(pm_buf *buf);

/* Grows *array (elements of `size` bytes, *cap of them) to hold at least `need`; PM_OK or PM_ERR_MEMORY. */
int pm_grow(void **array, size_t *cap, size_t need, size_t size);

/* ---- arena: freed as a whole; zero-initialised is empty ---- */
typedef struct pm_arena {
    struct pm_arena_block *head;
} pm_arena;
void *pm_arena_alloc(pm_arena *arena, size_t n,
                     size_t size); /* n * size zeroed bytes, 64-byte aligned; NULL when out of memory */
char *pm_arena_strdup(pm_arena *arena, const char *s, size_t len);
void pm_arena_free(pm_arena *arena);

/* ---- map from byte strings to int; keys are not copied and must outlive the map; zero-initialised is empty ---- */
typedef struct pm_map {
    struct pm_map_slot *slots;
    size_t cap, n;
} pm_map;
int pm_map_set(pm_map *map, const char *key, size_t len, int value); /* replaces; PM_OK or PM_ERR_MEMORY */
int pm_map_get(const pm_map *map, const char *key, size_t len, int absent);
void pm_map_free(pm_map *map);

/* ---- checksums: XXH64 with seed 0, fed in any pieces ---- */
typedef struct pm_hash {
    uint64_t sum[4], n; /* n: bytes so far */
    unsigned char held[32];
} pm_hash;
void pm_hash_start(pm_hash *hash);
void pm_hash_add(pm_hash *hash, const void *data, size_t n);
uint64_t pm_hash_value(const pm_hash *hash);

/* ---- files ---- */

/* Reads a whole regular file of at most `max` bytes into an empty buffer. */
int pm_read_file(const char *path, size_t max, pm_buf *out, pm_error *err);
bool pm_is_file(const char *path);
/* False only when nothing has this name: a link that leads nowhere is there, and reading it is an error. */
bool pm_is_there(const char *path);

/* ---- the machine ---- */

double pm_now(void); /* monotonic seconds */

/* Bytes of the processor's last-level cache; 0 when that is not known. */
size_t pm_cache_bytes(void);

#endif
