#include "log.h"

#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A pipe without a reader is an error: opening it would wait. */
static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
}

int pm_log_open(pm_log *log, const char *path, bool json, pm_error *err)
{
    *log = (pm_log){.path = path, .json = json, .fd = STDERR_FILENO};
    if (path && (log->fd = open_file(path)) < 0) {
        err->code = PM_ERR_IO;
        snprintf(err->message, sizeof(err->message), "%.512s: cannot be opened for the log: %s", path, strerror(errno));
        return PM_ERR_IO;
    }
    pthread_mutex_init(&log->lock, NULL);
    return PM_OK;
}

void pm_log_close(pm_log *log)
{
    if (log->path)
        close(log->fd);
    pthread_mutex_destroy(&log->lock);
}

void pm_log_reopen(pm_log *log)
{
    int fd = log->path ? open_file(log->path) : -1;
    if (fd < 0)
        return;
    pthread_mutex_lock(&log->lock);
    close(log->fd);
    log->fd = fd;
    log->torn = false;
    pthread_mutex_unlock(&log->lock);
}

/* Now, as "2026-01-31T12:00:00.123Z". */
static void stamp(char out[32])
{
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(out + n, 32 - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* Writes a line at once, so that lines of several processes stay whole. False when that cannot be done now: a pipe that
 * can take something can take a line of PIPE_BUF bytes. The lock is held. */
static bool put_line(pm_log *log, const char *line, size_t len)
{
    struct pollfd watched = {.fd = log->fd, .events = POLLOUT};
    if (poll(&watched, 1, 0) <= 0 || (watched.revents & POLLERR))
        return false;
    if (log->torn && write(log->fd, "\n", 1) != 1)
        return false;
    log->torn = false;
    ssize_t n = write(log->fd, line, len < PIPE_BUF ? len : PIPE_BUF);
    log->torn = n > 0 && line[n - 1] != '\n';
    return n == (ssize_t)len;
}

/* Writes a line, after one that says how many were lost before it. */
static void put(pm_log *log, pm_str *line)
{
    char time[32], text[64], report[128];
    pm_str_text(line, "\n");
    pthread_mutex_lock(&log->lock);
    uint64_t lost = log->lost;
    if (lost > log->reported) {
        stamp(time);
        snprintf(text, sizeof(text), "%llu lines could not be written", (unsigned long long)(lost - log->reported));
        int n = snprintf(report, sizeof(report), log->json ? "{\"time\":\"%s\",\"message\":\"%s\"}\n" : "%s %s\n", time,
                         text);
        if (put_line(log, report, (size_t)n))
            log->reported = lost;
    }
    if (lost > log->reported || line->failed || !put_line(log, line->data, line->len))
        log->lost++;
    pthread_mutex_unlock(&log->lock);
    pm_str_free(line);
}

uint64_t pm_log_lost(pm_log *log)
{
    pthread_mutex_lock(&log->lock);
    uint64_t lost = log->lost;
    pthread_mutex_unlock(&log->lock);
    return lost;
}

void pm_log_request(pm_log *log, const pm_exchange *exchange, int status)
{
    const pm_record *record = &exchange->record;
    double seconds = pm_clock() - exchange->arrived;
    bool model = record->finish != NULL;
    char time[32];
    pm_str line = {0};
    stamp(time);
    if (log->json) {
        json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:i, s:f}", "time", time, "id", exchange->id, "method",
                                   exchange->method, "path", exchange->path, "status", status, "seconds", seconds);
        if (model)
            json_object_update_new(
                object, json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:s}", "prompt_tokens", (json_int_t)record->prompt,
                                  "cached_tokens", (json_int_t)record->cached, "answer_tokens",
                                  (json_int_t)record->answer, "queue_seconds", record->queue, "prefill_seconds",
                                  record->prefill, "decode_seconds", record->decode, "finish", record->finish));
        pm_str_json(&line, object);
    } else {
        pm_str_print(&line, "%s %s %s %s %d %.1f ms", time, exchange->id, exchange->method, exchange->path, status,
                     seconds * 1e3);
        if (model)
            pm_str_print(&line,
                         ", prompt %zu (%zu cached), answer %zu, queue %.1f ms, prefill %.1f ms, decode %.1f ms, %s",
                         record->prompt, record->cached, record->answer, record->queue * 1e3, record->prefill * 1e3,
                         record->decode * 1e3, record->finish);
    }
    put(log, &line);
}

void pm_log_say(pm_log *log, const char *format, ...)
{
    char time[32], text[768];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    pm_str line = {0};
    stamp(time);
    if (log->json)
        pm_str_json(&line, json_pack("{s:s, s:s}", "time", time, "message", text));
    else
        pm_str_print(&line, "%s %s", time, text);
    put(log, &line);
}
