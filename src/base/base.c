#include "base/base.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pm_fail(pm_error *err, pm_status code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
        for (char *c = err->message; *c; c++)
            if (iscntrl((unsigned char)*c))
                *c = '?';
        err->code = code;
    }
    return code;
}

int pm_fail_memory(pm_error *err)
{
    return pm_fail(err, PM_ERR_MEMORY, "out of memory");
}

bool pm_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool pm_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* ---- growable bytes ---- */

int pm_grow(void **array, size_t *cap, size_t need, size_t size)
{
    if (need <= *cap)
        return PM_OK;
    size_t grown = *cap < need / 2 ? need : *cap < 8 ? 16 : *cap * 2, bytes;
    if (grown < need)
        grown = need;
    void *p = pm_mul(grown, size, &bytes) ? realloc(*array, bytes) : NULL;
    if (!p)
        return PM_ERR_MEMORY;
    *array = p;
    *cap = grown;
    return PM_OK;
}

int pm_buf_reserve(pm_buf *buf, size_t more)
{
    size_t need;
    if (!pm_add(buf->len, more, &need) || !pm_add(need, 1, &need))
        return PM_ERR_MEMORY;
    void *data = buf->data;
    int status = pm_grow(&data, &buf->cap, need, 1);
    buf->data = data;
    if (status == PM_OK)
        buf->data[buf->len] = 0;
    return status;
}

int pm_buf_add(pm_buf *buf, const void *data, size_t n)
{
    int status = pm_buf_reserve(buf, n);
    if (status != PM_OK)
        return status;
    if (n)
        memcpy(buf->data + buf->len, data, n);
    buf->len += n;
    buf->data[buf->len] = 0;
    return PM_OK;
}

int pm_buf_printf(pm_buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    int status = n < 0 ? PM_ERR_MEMORY : pm_buf_reserve(buf, (size_t)n);
    if (status == PM_OK) {
        vsnprintf(buf->data + buf->len, (size_t)n + 1, format, again);
        buf->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
    return status;
}

void pm_buf_free(pm_buf *buf)
{
    free(buf->data);
    *buf = (pm_buf){0};
}

/* ---- arena ---- */

enum { ARENA_ALIGN = 64, ARENA_BLOCK = 1 << 16 };

struct pm_arena_block {
    struct pm_arena_block *next;
    size_t used, size; /* of the bytes that follow this header, padded to ARENA_ALIGN */
};

void *pm_arena_alloc(pm_arena *arena, size_t n, size_t size)
{
    size_t bytes;
    if (!pm_mul(n, size, &bytes) || !pm_add(bytes, ARENA_ALIGN - 1, &bytes))
        return NULL;
    bytes -= bytes % ARENA_ALIGN;
    struct pm_arena_block *block = arena->head;
    if (!block || block->size - block->used < bytes) {
        size_t room = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK, total;
        if (!pm_add(room, ARENA_ALIGN, &total))
            return NULL;
        block = aligned_alloc(ARENA_ALIGN, total);
        if (!block)
            return NULL;
        *block = (struct pm_arena_block){arena->head, 0, room};
        arena->head = block;
    }
    char *p = (char *)block + ARENA_ALIGN + block->used;
    block->used += bytes;
    return memset(p, 0, bytes);
}

char *pm_arena_strdup(pm_arena *arena, const char *s, size_t len)
{
    char *copy = len < SIZE_MAX ? pm_arena_alloc(arena, len + 1, 1) : NULL;
    if (copy && len)
        memcpy(copy, s, len);
    return copy;
}

void pm_arena_free(pm_arena *arena)
{
    for (struct pm_arena_block *block = arena->head, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    arena->head = NULL;
}

/* ---- map ---- */

struct pm_map_slot {
    const char *key; /* NULL: empty */
    size_t len;
    uint64_t hash;
    int value;
};

/* FNV-1a with a final mix, so that the low bits are good enough for a mask. */
static uint64_t hash_bytes(const char *s, size_t len)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

/* The slot of the key, or the empty slot where it belongs. */
static struct pm_map_slot *find_slot(struct pm_map_slot *slots, size_t cap, const char *key, size_t len, uint64_t hash)
{
    for (size_t i = hash & (cap - 1);; i = (i + 1) & (cap - 1)) {
        struct pm_map_slot *slot = &slots[i];
        if (!slot->key || (slot->hash == hash && slot->len == len && memcmp(slot->key, key, len) == 0))
            return slot;
    }
}

static int map_double(pm_map *map)
{
    size_t cap = map->cap ? map->cap * 2 : 64;
    struct pm_map_slot *slots = calloc(cap, sizeof(*slots));
    if (!slots)
        return PM_ERR_MEMORY;
    for (size_t i = 0; i < map->cap; i++) {
        struct pm_map_slot *old = &map->slots[i];
        if (old->key)
            *find_slot(slots, cap, old->key, old->len, old->hash) = *old;
    }
    free(map->slots);
    map->slots = slots;
    map->cap = cap;
    return PM_OK;
}

int pm_map_set(pm_map *map, const char *key, size_t len, int value)
{
    if (map->n + 1 > map->cap / 2 && map_double(map) != PM_OK)
        return PM_ERR_MEMORY;
    uint64_t hash = hash_bytes(key, len);
    struct pm_map_slot *slot = find_slot(map->slots, map->cap, key, len, hash);
    map->n += !slot->key;
    *slot = (struct pm_map_slot){key, len, hash, value};
    return PM_OK;
}

int pm_map_get(const pm_map *map, const char *key, size_t len, int absent)
{
    if (!map->n)
        return absent;
    const struct pm_map_slot *slot = find_slot(map->slots, map->cap, key, len, hash_bytes(key, len));
    return slot->key ? slot->value : absent;
}

void pm_map_free(pm_map *map)
{
    free(map->slots);
    *map = (pm_map){0};
}
