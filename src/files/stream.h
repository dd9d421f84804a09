/* Our own files: numbers and arrays, little-endian, in a fixed order, with a checksum (XXH64) of all that stands before
 * it at the end.
 *
 * A file is written under a temporary name beside its own and renamed when it is complete and on the disk: whoever
 * looks sees the old one or the new one, whole. */
#ifndef PM_STREAM_H
#define PM_STREAM_H

#include "base/base.h"

/* ---- writing ---- */

typedef struct pm_writer {
    char *path, *temporary;
    int fd, error; /* error: errno of the first write that failed */
    unsigned char *buffer;
    size_t used;
    pm_hash hash;
} pm_writer;

/* Begins a file at `path`, which is left alone until pm_writer_commit. What exists there and is not a regular file is
 * refused. */
int pm_writer_open(pm_writer *writer, const char *path, pm_error *err);

/* A failure shows at pm_writer_commit. */
void pm_write(pm_writer *writer, const void *data, size_t n);
void pm_write_u32(pm_writer *writer, uint32_t x);
void pm_write_u64(pm_writer *writer, uint64_t x);

/* Ends the file and puts it in its place; afterwards, also when it failed, the writer is closed. */
int pm_writer_commit(pm_writer *writer, pm_error *err);

/* Forgets the file. Closed or zero-initialised: nothing to do. */
void pm_writer_abandon(pm_writer *writer);

/* ---- reading ---- */

typedef struct pm_reader {
    char *path;
    int fd;
    uint64_t size, left; /* bytes of the file; of those before the checksum, not yet read */
    unsigned char *buffer;
    size_t at, filled;
    pm_hash hash;
} pm_reader;

int pm_reader_open(pm_reader *reader, const char *path, pm_error *err);

/* Reading past the end is an error: the file was cut short. */
int pm_read(pm_reader *reader, void *data, size_t n, pm_error *err);
int pm_read_u32(pm_reader *reader, uint32_t *x, pm_error *err);
int pm_read_u64(pm_reader *reader, uint64_t *x, pm_error *err);

/* An error unless all was read and the checksum is right. */
int pm_reader_finish(pm_reader *reader, pm_error *err);

/* Closed or zero-initialised: nothing to do. */
void pm_reader_close(pm_reader *reader);

#endif
