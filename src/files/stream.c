#include "files/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 1 << 18, CHECKSUM = 8 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are written as they lie in memory");

static void put_number(unsigned char *out, uint64_t x, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (unsigned char)(x >> 8 * i);
}

static uint64_t get_number(const unsigned char *in, int n)
{
    uint64_t x = 0;
    for (int i = n; i-- > 0;)
        x = x << 8 | in[i];
    return x;
}

/* ---- writing ---- */

/* A new file in the folder of the final one; its name goes to writer->temporary. */
static int make_temporary(pm_writer *writer, pm_error *err)
{
    size_t n = strlen(writer->path);
    writer->temporary = malloc(n + sizeof(".XXXXXX"));
    if (!writer->temporary)
        return pm_fail_memory(err);
    memcpy(writer->temporary, writer->path, n);
    memcpy(writer->temporary + n, ".XXXXXX", sizeof(".XXXXXX"));
    writer->fd = mkstemp(writer->temporary);
    if (writer->fd >= 0)
        return PM_OK;
    int error = errno;
    free(writer->temporary); /* there is nothing to remove */
    writer->temporary = NULL;
    return pm_fail(err, PM_ERR_IO, "%s: cannot be written: %s", writer->path, strerror(error));
}

int pm_writer_open(pm_writer *writer, const char *path, pm_error *err)
{
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return pm_fail(err, PM_ERR_IO, "%s: exists and is not a regular file", path);
    pm_writer made = {.fd = -1, .path = strdup(path), .buffer = malloc(BUFFER)};
    int result = made.path && made.buffer ? make_temporary(&made, err) : pm_fail_memory(err);
    if (result != PM_OK) {
        pm_writer_abandon(&made);
        return result;
    }
    pm_hash_start(&made.hash);
    *writer = made;
    return PM_OK;
}

static void flush(pm_writer *writer)
{
    size_t done = 0;
    while (!writer->error && done < writer->used) {
        ssize_t n = write(writer->fd, writer->buffer + done, writer->used - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            writer->error = n == 0 ? EIO : errno;
    }
    writer->used = 0;
}

static void put(pm_writer *writer, const void *data, size_t n)
{
    const unsigned char *from = data;
    while (n > 0) {
        size_t take = BUFFER - writer->used < n ? BUFFER - writer->used : n;
        memcpy(writer->buffer + writer->used, from, take);
        writer->used += take;
        from += take;
        n -= take;
        if (writer->used == BUFFER)
            flush(writer);
    }
}

void pm_write(pm_writer *writer, const void *data, size_t n)
{
    pm_hash_add(&writer->hash, data, n);
    put(writer, data, n);
}

void pm_write_u32(pm_writer *writer, uint32_t x)
{
    unsigned char bytes[4];
    put_number(bytes, x, 4);
    pm_write(writer, bytes, sizeof(bytes));
}

void pm_write_u64(pm_writer *writer, uint64_t x)
{
    unsigned char bytes[8];
    put_number(bytes, x, 8);
    pm_write(writer, bytes, sizeof(bytes));
}

/* Makes a rename last; a folder that cannot be synced is no failure of ours. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    free(folder);
}

int pm_writer_commit(pm_writer *writer, pm_error *err)
{
    unsigned char checksum[CHECKSUM];
    put_number(checksum, pm_hash_value(&writer->hash), CHECKSUM);
    put(writer, checksum, sizeof(checksum));
    flush(writer);
    if (!writer->error && fsync(writer->fd) != 0)
        writer->error = errno;
    if (close(writer->fd) != 0 && !writer->error)
        writer->error = errno;
    writer->fd = -1;
    if (!writer->error && rename(writer->temporary, writer->path) != 0)
        writer->error = errno;
    int status = PM_OK;
    if (writer->error) {
        status = pm_fail(err, PM_ERR_IO, "%s: cannot be written: %s", writer->path, strerror(writer->error));
    } else {
        free(writer->temporary); /* it has the other name now */
        writer->temporary = NULL;
        sync_folder(writer->path);
    }
    pm_writer_abandon(writer);
    return status;
}

void pm_writer_abandon(pm_writer *writer)
{
    if (writer->temporary) {
        if (writer->fd >= 0)
            close(writer->fd);
        (void)unlink(writer->temporary);
    }
    free(writer->temporary);
    free(writer->path);
    free(writer->buffer);
    *writer = (pm_writer){.fd = -1};
}

/* ---- reading ---- */

int pm_reader_open(pm_reader *reader, const char *path, pm_error *err)
{
    struct stat status;
    int result = PM_OK;
    pm_reader made = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)}; /* which does not wait for a pipe */
    if (made.fd < 0)
        return pm_fail(err, PM_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    made.path = strdup(path);
    made.buffer = malloc(BUFFER);
    if (!made.path || !made.buffer)
        result = pm_fail_memory(err);
    else if (fstat(made.fd, &status) != 0)
        result = pm_fail(err, PM_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(status.st_mode))
        result = pm_fail(err, PM_ERR_IO, "%s: is not a regular file", path);
    if (result != PM_OK) {
        pm_reader_close(&made);
        return result;
    }
    made.size = (uint64_t)status.st_size;
    made.left = made.size > CHECKSUM ? made.size - CHECKSUM : 0;
    pm_hash_start(&made.hash);
    *reader = made;
    return PM_OK;
}

static int cut_short(const pm_reader *reader, pm_error *err)
{
    return pm_fail(err, PM_ERR_FORMAT, "%s: ends too early, after %llu bytes", reader->path,
                   (unsigned long long)reader->size);
}

/* The next n bytes, whatever they are. */
static int get(pm_reader *reader, void *data, size_t n, pm_error *err)
{
    unsigned char *to = data;
    while (n > 0) {
        if (reader->at == reader->filled) {
            ssize_t got = read(reader->fd, reader->buffer, BUFFER);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                return pm_fail(err, PM_ERR_IO, "%s: cannot be read: %s", reader->path, strerror(errno));
            if (got == 0)
                return cut_short(reader, err);
            reader->at = 0;
            reader->filled = (size_t)got;
        }
        size_t take = reader->filled - reader->at < n ? reader->filled - reader->at : n;
        memcpy(to, reader->buffer + reader->at, take);
        reader->at += take;
        to += take;
        n -= take;
    }
    return PM_OK;
}

int pm_read(pm_reader *reader, void *data, size_t n, pm_error *err)
{
    if (n > reader->left)
        return cut_short(reader, err);
    int status = get(reader, data, n, err);
    if (status != PM_OK)
        return status;
    reader->left -= n;
    pm_hash_add(&reader->hash, data, n);
    return PM_OK;
}

int pm_read_u32(pm_reader *reader, uint32_t *x, pm_error *err)
{
    unsigned char bytes[4];
    int status = pm_read(reader, bytes, sizeof(bytes), err);
    if (status == PM_OK)
        *x = (uint32_t)get_number(bytes, 4);
    return status;
}

int pm_read_u64(pm_reader *reader, uint64_t *x, pm_error *err)
{
    unsigned char bytes[8];
    int status = pm_read(reader, bytes, sizeof(bytes), err);
    if (status == PM_OK)
        *x = get_number(bytes, 8);
    return status;
}

int pm_reader_finish(pm_reader *reader, pm_error *err)
{
    unsigned char checksum[CHECKSUM];
    if (reader->left)
        return pm_fail(err, PM_ERR_FORMAT, "%s: has %llu bytes too many", reader->path,
                       (unsigned long long)reader->left);
    int status = get(reader, checksum, sizeof(checksum), err);
    if (status == PM_OK && get_number(checksum, CHECKSUM) != pm_hash_value(&reader->hash))
        status = pm_fail(err, PM_ERR_FORMAT, "%s: is damaged: its checksum is not that of its content", reader->path);
    return status;
}

void pm_reader_close(pm_reader *reader)
{
    if (reader->path || reader->buffer || reader->fd > 0) {
        if (reader->fd >= 0)
            close(reader->fd);
        free(reader->path);
        free(reader->buffer);
    }
    *reader = (pm_reader){.fd = -1};
}
