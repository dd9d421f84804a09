/* How the CPU keeps a sequence's memory; for the kernels that read and write it.
 *
 * Rows lie in blocks of 64, plane-major: [planes][64] vectors of the cache's type, so that the keys of one head in one
 * block are contiguous. Blocks are shared between forks and copied before a write. One thread at a time changes the
 * handles of an engine, so counts of references are plain. */
#ifndef PM_MEMORY_H
#define PM_MEMORY_H

#include "backend/backend.h"

enum { PM_BLOCK_ROWS = 64 };

typedef struct pm_block pm_block;
struct pm_block {
    int64_t references;
    _Alignas(64) unsigned char data[];
};

/* Rows outside a window are kept too: they cost memory, but any cut stays possible. */
struct pm_rows {
    uint64_t *held; /* the backend's count of bytes */
    pm_rows_spec spec;
    pm_kv_type type;
    int64_t length; /* rows */
    size_t plane_bytes, block_bytes;
    pm_block **blocks; /* [n_blocks], length rounded up or more */
    size_t n_blocks, cap;
};

struct pm_state {
    int64_t count;
    _Alignas(64) float data[];
};

/* Makes the n rows after the last one writable, without changing the length: allocates blocks and copies a shared one.
 * What those rows hold is undefined. */
int pm_rows_reserve(pm_rows *rows, int64_t n, pm_error *err);

/* Plane `plane` of block `block`: 64 vectors of the cache's type. */
static inline void *pm_rows_plane(const pm_rows *rows, int64_t block, int plane)
{
    return rows->blocks[block]->data + (size_t)plane * rows->plane_bytes;
}

/* The vector of one plane of a row. */
static inline void *pm_rows_vector(const pm_rows *rows, int64_t row, int plane)
{
    return (unsigned char *)pm_rows_plane(rows, row / PM_BLOCK_ROWS, plane) +
           (size_t)(row % PM_BLOCK_ROWS) * (rows->plane_bytes / PM_BLOCK_ROWS);
}

#endif
