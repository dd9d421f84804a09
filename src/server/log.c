#include "log.h"

#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int open_file(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
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
    pthread_mutex_unlock(&log->lock);
}

/* Writes a line at once, so that lines of several processes stay whole. */
static void put(pm_log *log, pm_str *line)
{
    pm_str_text(line, "\n");
    if (!line->failed) {
        pthread_mutex_lock(&log->lock);
        ssize_t ignored = write(log->fd, line->data, line->len);
        (void)ignored; /* a full disk does not keep anybody from being answered */
        pthread_mutex_unlock(&log->lock);
    }
    pm_str_free(line);
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
