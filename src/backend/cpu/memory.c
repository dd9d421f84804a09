#include "backend/cpu/memory.h"
#include "backend/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a plane and of a whole block; false when they do not fit a size_t. */
static bool block_bytes(const pm_rows_spec *spec, pm_kv_type type, size_t *plane, size_t *block)
{
    if (!pm_mul(pm_kv_bytes(type, spec->width), PM_BLOCK_ROWS, plane) || !pm_mul(*plane, (size_t)spec->planes, block) ||
        !pm_add(*block, sizeof(pm_block) + 63, block))
        return false;
    *block &= ~(size_t)63;
    return true;
}

static pm_block *block_new(const pm_rows *rows)
{
    pm_block *block = aligned_alloc(64, rows->block_bytes);
    if (!block)
        return NULL;
    block->references = 1;
    *rows->held += rows->block_bytes;
    return block;
}

static void block_release(const pm_rows *rows, pm_block *block)
{
    if (--block->references > 0)
        return;
    *rows->held -= rows->block_bytes;
    free(block);
}

/* Room for `need` blocks in the table. */
static int table_grow(pm_rows *rows, size_t need, pm_error *err)
{
    void *table = rows->blocks;
    int rc = pm_grow(&table, &rows->cap, need, sizeof(*rows->blocks));
    rows->blocks = table;
    return rc == PM_OK ? PM_OK : pm_fail_memory(err);
}

static size_t blocks_for(int64_t rows)
{
    return (size_t)(rows / PM_BLOCK_ROWS + (rows % PM_BLOCK_ROWS != 0));
}

int pm_cpu_rows_new(pm_backend *backend, const pm_rows_spec *spec, pm_kv_type type, pm_rows **out, pm_error *err)
{
    size_t plane, block;
    if (spec->ratio < 1)
        return pm_fail(err, PM_ERR_INVALID, "cache rows of %d tokens are not possible", spec->ratio);
    if (spec->planes < 1 || spec->width < 1 || !block_bytes(spec, type, &plane, &block))
        return pm_fail(err, PM_ERR_INVALID, "cache rows of %d planes of %d elements are not possible", spec->planes,
                       spec->width);
    pm_rows *rows = calloc(1, sizeof *rows);
    if (!rows)
        return pm_fail_memory(err);
    rows->held = &((pm_cpu *)backend)->held;
    rows->spec = *spec;
    rows->type = type;
    rows->plane_bytes = plane;
    rows->block_bytes = block;
    *out = rows;
    return PM_OK;
}

int pm_cpu_rows_fork(pm_backend *backend, const pm_rows *rows, int64_t n, pm_rows **out, pm_error *err)
{
    pm_rows *fork;
    if (n < 0 || n > rows->length)
        return pm_fail(err, PM_ERR_INVALID, "cannot fork %lld rows of a cache of %lld", (long long)n,
                       (long long)rows->length);
    int rc = pm_cpu_rows_new(backend, &rows->spec, rows->type, &fork, err);
    if (rc != PM_OK)
        return rc;
    size_t shared = blocks_for(n);
    rc = table_grow(fork, shared, err);
    if (rc != PM_OK) {
        pm_cpu_rows_free(backend, fork);
        return rc;
    }
    for (size_t i = 0; i < shared; i++) {
        fork->blocks[i] = rows->blocks[i];
        fork->blocks[i]->references++;
    }
    fork->n_blocks = shared;
    fork->length = n;
    *out = fork;
    return PM_OK;
}

int pm_rows_reserve(pm_rows *rows, int64_t n, pm_error *err)
{
    if (n < 1)
        return PM_OK;
    if (rows->length > INT64_MAX - n)
        return pm_fail_memory(err);
    size_t need = blocks_for(rows->length + n), first = (size_t)(rows->length / PM_BLOCK_ROWS);
    if (table_grow(rows, need, err) != PM_OK)
        return pm_fail_memory(err);
    while (rows->n_blocks < need) {
        pm_block *block = block_new(rows);
        if (!block)
            return pm_fail_memory(err);
        rows->blocks[rows->n_blocks++] = block;
    }
    /* Only the part-filled block can be shared: blocks beyond the length are never handed to a fork. */
    if (rows->blocks[first]->references > 1) {
        pm_block *copy = block_new(rows);
        if (!copy)
            return pm_fail_memory(err);
        memcpy(copy->data, rows->blocks[first]->data, rows->plane_bytes * (size_t)rows->spec.planes);
        block_release(rows, rows->blocks[first]);
        rows->blocks[first] = copy;
    }
    return PM_OK;
}

void pm_cpu_rows_truncate(pm_backend *backend, pm_rows *rows, int64_t n)
{
    (void)backend;
    if (n < 0 || n > rows->length)
        return;
    while (rows->n_blocks > blocks_for(n))
        block_release(rows, rows->blocks[--rows->n_blocks]);
    rows->length = n;
}

int64_t pm_cpu_rows_length(const pm_rows *rows)
{
    return rows->length;
}

void pm_cpu_rows_free(pm_backend *backend, pm_rows *rows)
{
    if (!rows)
        return;
    pm_cpu_rows_truncate(backend, rows, 0);
    free(rows->blocks);
    free(rows);
}

uint64_t pm_cpu_rows_bytes(const pm_rows_spec *spec, pm_kv_type type, int64_t tokens)
{
    size_t plane, block;
    if (spec->ratio < 1 || spec->planes < 1 || spec->width < 1 || tokens < 1 ||
        !block_bytes(spec, type, &plane, &block))
        return 0;
    int64_t rows = tokens / spec->ratio + (tokens % spec->ratio != 0);
    return (uint64_t)blocks_for(rows) * block;
}

int pm_cpu_rows_export(pm_backend *backend, const pm_rows *rows, int64_t first, int64_t n, void *out, pm_error *err)
{
    (void)backend;
    size_t bytes = rows->plane_bytes / PM_BLOCK_ROWS;
    unsigned char *to = out;
    if (first < 0 || n < 0 || first > rows->length || n > rows->length - first)
        return pm_fail(err, PM_ERR_INVALID, "cannot export %lld rows from %lld of a cache of %lld", (long long)n,
                       (long long)first, (long long)rows->length);
    for (int64_t row = first; row < first + n; row++)
        for (int plane = 0; plane < rows->spec.planes; plane++, to += bytes)
            memcpy(to, pm_rows_vector(rows, row, plane), bytes);
    return PM_OK;
}

int pm_cpu_rows_import(pm_backend *backend, pm_rows *rows, int64_t n, const void *data, pm_error *err)
{
    (void)backend;
    size_t bytes = rows->plane_bytes / PM_BLOCK_ROWS;
    const unsigned char *from = data;
    int rc = pm_rows_reserve(rows, n, err);
    if (rc != PM_OK)
        return rc;
    for (int64_t row = rows->length; row < rows->length + n; row++)
        for (int plane = 0; plane < rows->spec.planes; plane++, from += bytes)
            memcpy(pm_rows_vector(rows, row, plane), from, bytes);
    rows->length += n;
    return PM_OK;
}

/* Bytes of a state of so many elements; false when they do not fit a size_t. */
static bool state_bytes(int64_t count, size_t *bytes)
{
    if (!pm_mul((size_t)count, sizeof(float), bytes) || !pm_add(*bytes, sizeof(pm_state) + 63, bytes))
        return false;
    *bytes &= ~(size_t)63;
    return true;
}

int pm_cpu_state_new(pm_backend *backend, const pm_state_spec *spec, pm_state **out, pm_error *err)
{
    size_t bytes;
    if (spec->count < 0)
        return pm_fail(err, PM_ERR_INVALID, "a state of %lld elements is not possible", (long long)spec->count);
    if (!state_bytes(spec->count, &bytes))
        return pm_fail_memory(err);
    pm_state *state = aligned_alloc(64, bytes);
    if (!state)
        return pm_fail_memory(err);
    state->count = spec->count;
    ((pm_cpu *)backend)->held += bytes;
    pm_cpu_state_zero(backend, state);
    *out = state;
    return PM_OK;
}

void pm_cpu_state_zero(pm_backend *backend, pm_state *state)
{
    (void)backend;
    memset(state->data, 0, (size_t)state->count * sizeof(float));
}

void pm_cpu_state_copy(pm_backend *backend, pm_state *to, const pm_state *from)
{
    (void)backend;
    memcpy(to->data, from->data, (size_t)from->count * sizeof(float));
}

void pm_cpu_state_free(pm_backend *backend, pm_state *state)
{
    size_t bytes;
    if (state && state_bytes(state->count, &bytes))
        ((pm_cpu *)backend)->held -= bytes;
    free(state);
}

uint64_t pm_cpu_held(const pm_backend *backend)
{
    return ((const pm_cpu *)backend)->held;
}

int pm_cpu_state_export(pm_backend *backend, const pm_state *state, float *out, pm_error *err)
{
    (void)backend, (void)err;
    memcpy(out, state->data, (size_t)state->count * sizeof(float));
    return PM_OK;
}

int pm_cpu_state_import(pm_backend *backend, pm_state *state, const float *data, pm_error *err)
{
    (void)backend, (void)err;
    memcpy(state->data, data, (size_t)state->count * sizeof(float));
    return PM_OK;
}
