/* Files, the clock, the machine. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int pm_read_file(const char *path, size_t max, pm_buf *out, pm_error *err)
{
    struct stat st;
    pm_buf buf = {0};
    int status = PM_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        status = pm_fail(err, PM_ERR_IO, "cannot open %s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        status = pm_fail(err, PM_ERR_IO, "%s is not a regular file", path);
        goto done;
    }
    if ((uint64_t)st.st_size > max) {
        status = pm_fail(err, PM_ERR_LIMIT, "%s has %lld bytes, more than the %zu allowed", path, (long long)st.st_size,
                         max);
        goto done;
    }
    if (pm_buf_reserve(&buf, (size_t)st.st_size) != PM_OK) {
        status = pm_fail_memory(err);
        goto done;
    }
    while (buf.len < (size_t)st.st_size) {
        ssize_t n = read(fd, buf.data + buf.len, (size_t)st.st_size - buf.len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            status = pm_fail(err, PM_ERR_IO, "cannot read %s: %s", path, n ? strerror(errno) : "it became shorter");
            goto done;
        }
        buf.len += (size_t)n;
    }
    buf.data[buf.len] = 0;
    *out = buf;
    buf = (pm_buf){0};
done:
    if (fd >= 0)
        close(fd);
    pm_buf_free(&buf);
    return status;
}

bool pm_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool pm_is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 || errno != ENOENT;
}

double pm_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

size_t pm_cache_bytes(void)
{
    long bytes = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE /* glibc's */
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : 0;
}
