/* The server from its start to its end. */
#include "http.h"
#include "worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { DRAIN_SECONDS = 30, FLUSH_SECONDS = 2 };

static int fail(pm_error *err, const char *what)
{
    err->code = PM_ERR_IO;
    snprintf(err->message, sizeof(err->message), "%s: %s", what, strerror(errno));
    return PM_ERR_IO;
}

/* The last part of a path. */
static void base_name(const char *path, char *out, size_t size)
{
    char *resolved = realpath(path, NULL);
    const char *slash = resolved ? strrchr(resolved, '/') : NULL;
    snprintf(out, size, "%s", slash && slash[1] ? slash + 1 : "model");
    free(resolved);
}

static void settle_options(pm_server *server, const pm_serve_options *options)
{
    pm_serve_options *chosen = &server->options;
    *chosen = *options;
    chosen->host = chosen->host ? chosen->host : "127.0.0.1";
    chosen->max_body = chosen->max_body ? chosen->max_body : (size_t)8 << 20;
    chosen->timeout = chosen->timeout > 0 ? chosen->timeout : 60;
    if (chosen->alias)
        snprintf(server->name, sizeof(server->name), "%s", chosen->alias);
    else
        base_name(chosen->model, server->name, sizeof(server->name));
    server->started = (int64_t)time(NULL);
}

/* The model is loaded, or cannot be: false. */
static bool announce(pm_server *server)
{
    uint64_t rings;
    ssize_t ignored = read(server->wake_main, &rings, sizeof(rings));
    (void)ignored;
    if (server->stage == PM_FAILED)
        return false;
    printf("listening on %s\n", server->listening);
    fflush(stdout);
    return true;
}

/* Waits for signals, and looks after slow clients meanwhile. Returns when the server is to stop. */
static int attend(pm_server *server, int signals)
{
    for (;;) {
        struct pollfd watched[] = {{.fd = signals, .events = POLLIN}, {.fd = server->wake_main, .events = POLLIN}};
        struct signalfd_siginfo signal;
        if (poll(watched, 2, 1000) < 0 && errno != EINTR)
            return PM_ERR_IO;
        pm_http_guard(server);
        if (watched[1].revents && !announce(server))
            return server->failure.code;
        if (!watched[0].revents || read(signals, &signal, sizeof(signal)) != (ssize_t)sizeof(signal))
            continue;
        if (signal.ssi_signo != SIGHUP)
            return PM_OK;
        pm_log_reopen(&server->log);
    }
}

/* Waits until all answers have been sent, for a moment at most: a client that does not read must not keep us. */
static void flush(pm_server *server)
{
    double deadline = pm_clock() + FLUSH_SECONDS;
    while (server->open > 0 && pm_clock() < deadline)
        usleep(5000);
}

/* Runs between the start of the threads and their end. A second signal ends the process as it would any other. */
static int serve(pm_server *server, int signals, const sigset_t *set, pm_error *err)
{
    int status = pm_http_start(server, err);
    if (status != PM_OK)
        return status;
    if (!pm_worker_start(server)) {
        status = fail(err, "the engine's thread cannot be started");
    } else {
        status = attend(server, signals);
        pthread_sigmask(SIG_UNBLOCK, set, NULL);
        pm_http_quiesce(server);
        pm_worker_stop(server, pm_clock() + DRAIN_SECONDS);
        pm_worker_join(server);
        flush(server);
    }
    pm_http_stop(server);
    if (status != PM_OK && server->failure.code != PM_OK)
        *err = server->failure;
    return status;
}

int pm_serve(const pm_serve_options *options, pm_error *err)
{
    pm_server *server = calloc(1, sizeof(*server));
    sigset_t set;
    int signals = -1;
    if (!server)
        return fail(err, "the server cannot be started");
    server->listener = server->wake = server->wake_main = -1;
    settle_options(server, options);
    int status = pm_log_open(&server->log, options->log_file, options->log_json, err);
    if (status != PM_OK) {
        free(server);
        return status;
    }
    /* Before there are threads, so that all inherit it. */
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signals = signalfd(-1, &set, SFD_CLOEXEC);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->wake_main = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (signals < 0 || server->wake < 0 || server->wake_main < 0)
        status = fail(err, "the server cannot be started");
    if (status == PM_OK)
        status = pm_keys_read(server, err);
    if (status == PM_OK)
        status = pm_listen(server, err);
    if (status == PM_OK)
        status = serve(server, signals, &set, err);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    close(signals);
    close(server->wake);
    close(server->wake_main);
    pm_keys_free(server);
    pm_log_close(&server->log);
    free(server);
    return status;
}
