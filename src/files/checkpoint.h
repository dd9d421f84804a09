/* Safetensors checkpoints: one model.safetensors, or the shards that model.safetensors.index.json names; nothing else
 * is read. Format: https://huggingface.co/docs/safetensors. Every header is validated whole before a tensor is handed
 * out: lengths, JSON, dtypes, shape times dtype against the byte range, overlaps, holes, duplicates. The index decides:
 * every tensor must be in the shard where it places it, and tensors that it does not place in a shard are passed over
 * (a copy in a second shard, a leftover). */
#ifndef PM_CHECKPOINT_H
#define PM_CHECKPOINT_H

#include "base/base.h"

typedef enum pm_dtype {
    PM_F32,
    PM_F16,
    PM_BF16,
    PM_F8_E4M3,
    PM_F8_E5M2,
    PM_F8_E8M0,
    PM_U8,
    PM_I8,
    PM_U16,
    PM_I16,
    PM_U32,
    PM_I32,
    PM_U64,
    PM_I64,
    PM_BOOL,
    PM_DTYPES
} pm_dtype;

enum { PM_MAX_RANK = 8 };

/* A tensor in a mapped file. `data` has no alignment at all, not even the element's: MLX writes headers of any length,
 * so a 32-bit word may begin at an odd address. Read it through memcpy or unaligned loads. */
typedef struct pm_stored {
    const char *name;
    pm_dtype dtype;
    int rank;
    int64_t shape[PM_MAX_RANK];
    const void *data;
    size_t bytes;
    int file; /* for pm_checkpoint_file */
} pm_stored;

typedef struct pm_checkpoint pm_checkpoint;

size_t pm_dtype_size(pm_dtype dtype);
const char *pm_dtype_name(pm_dtype dtype); /* as safetensors spells it */

int pm_checkpoint_open(pm_checkpoint **out, const char *dir, pm_error *err);
void pm_checkpoint_close(pm_checkpoint *checkpoint);

/* Tensors in ascending order of name. */
size_t pm_checkpoint_count(const pm_checkpoint *checkpoint);
const pm_stored *pm_checkpoint_at(const pm_checkpoint *checkpoint, size_t i);
const pm_stored *pm_checkpoint_find(const pm_checkpoint *checkpoint, const char *name);   /* NULL when absent */
const char *pm_checkpoint_file(const pm_checkpoint *checkpoint, const pm_stored *tensor); /* path, for messages */
uint64_t pm_checkpoint_bytes(const pm_checkpoint *checkpoint);                            /* of all tensors */

/* Appends the names of safetensors files in `dir` and its folders that the checkpoint does not read, separated by
 * commas. */
int pm_checkpoint_unread(const pm_checkpoint *checkpoint, const char *dir, pm_buf *out, pm_error *err);

/* An error that names the file when one has become shorter since it was mapped (reading on would be a bus error).
 * Cheap: one fstat per file. */
int pm_checkpoint_check(const pm_checkpoint *checkpoint, pm_error *err);

#endif
