#define _GNU_SOURCE /* POLLRDHUP */
#include "worker.h"

#include "constrain.h"
#include "job.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    WATCHED_MAX = 256, /* sockets that one call of poll looks at */
    PING_PART = 6      /* a stream is silent for this part of the time limit of clients, at most */
};

static void ring(int bell)
{
    uint64_t one = 1;
    ssize_t ignored = write(bell, &one, sizeof(one));
    (void)ignored; /* it rings already when it is full */
}

/* Waits until the bell rings, for `milliseconds` at most (-1: for ever). */
static void wait_for(int bell, int milliseconds)
{
    struct pollfd watched = {.fd = bell, .events = POLLIN};
    uint64_t rings;
    if (poll(&watched, 1, milliseconds) > 0) {
        ssize_t ignored = read(bell, &rings, sizeof(rings));
        (void)ignored;
    }
}

/* ---- loading ---- */

void pm_worker_publish(pm_server *server)
{
    pm_scheduler_info info;
    pm_scheduler_describe(server->scheduler, &info);
    pthread_mutex_lock(&server->lock);
    server->gauges.scheduler = info;
    pthread_mutex_unlock(&server->lock);
}

/* How much memory timelines get when the options do not say: what a full one takes, snapshots included, is known by a
 * scheduler without a bound of ours. */
static int choose_cache(pm_server *server, uint64_t available, uint64_t weights, uint64_t *bytes, pm_error *err)
{
    const pm_serve_options *options = &server->options;
    pm_scheduler *trial;
    pm_scheduler_info info;
    *bytes = options->cache_bytes;
    if (*bytes)
        return PM_OK;
    int status = pm_scheduler_new(&trial, server->engine, NULL, err);
    if (status != PM_OK)
        return status;
    pm_scheduler_describe(trial, &info);
    pm_scheduler_free(trial);
    /* It takes half as much again as one needs. */
    *bytes = pm_cache_budget(available, weights, info.cache_bytes / 3 * 2, options->parallel ? options->parallel : 8);
    return PM_OK;
}

/* Whether the chat template leaves out tools that it is given: two trials say the same. One that it complains about
 * says nothing; then requests are told. */
static bool leaves_tools_out(const pm_engine *engine)
{
    pm_chat chat = {.messages = "[{\"role\":\"user\",\"content\":\"x\"}]"};
    char *without = NULL, *with = NULL;
    size_t n_without, n_with;
    bool same = pm_chat_text(engine, &chat, &without, &n_without, NULL) == PM_OK;
    chat.tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
                 "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    same = same && pm_chat_text(engine, &chat, &with, &n_with, NULL) == PM_OK && n_with == n_without &&
           memcmp(with, without, n_with) == 0;
    pm_free(without);
    pm_free(with);
    return same;
}

static int load(pm_server *server, pm_error *err)
{
    const pm_serve_options *options = &server->options;
    pm_info info;
    double start = pm_clock();
    uint64_t available = pm_memory_available();
    int status = pm_engine_open(&server->engine, options->model, &options->engine, err);
    if (status != PM_OK)
        return status;
    server->no_tools = leaves_tools_out(server->engine);
    pm_engine_info(server->engine, &info);
    pm_scheduler_options chosen = {.parallel = options->parallel,
                                   .queue = options->queue,
                                   .cache_dir = options->cache_dir,
                                   .disk_bytes = options->disk_bytes};
    status = choose_cache(server, available, info.weight_bytes, &chosen.cache_bytes, err);
    if (status == PM_OK)
        status = pm_scheduler_new(&server->scheduler, server->engine, &chosen, err);
    if (status != PM_OK)
        return status;
    pthread_mutex_lock(&server->lock);
    server->gauges.model = info;
    pthread_mutex_unlock(&server->lock);
    pm_worker_publish(server);
    pm_log_say(&server->log, "%s: %s, %s, context %d, %s, %.0f MiB for timelines; loaded in %.2f s", server->name,
               info.family, info.formats, info.ctx, info.device, (double)chosen.cache_bytes / (1 << 20),
               pm_clock() - start);
    pm_scheduler_info found;
    pm_scheduler_describe(server->scheduler, &found);
    if (options->cache_dir)
        pm_log_say(&server->log, "%s: %d timelines of this model, %llu other files; %.0f of %.0f MiB used",
                   options->cache_dir, found.stored, (unsigned long long)found.disk_ignored,
                   (double)found.stored_bytes / (1 << 20), (double)found.disk_bytes / (1 << 20));
    return PM_OK;
}

/* ---- exchanges ---- */

static void refuse_stopping(pm_exchange *exchange)
{
    pm_refusal refusal;
    pm_refuse(&refusal, 503, "not_ready", NULL, "the server is stopping");
    refusal.retry_after = 10;
    pm_exchange_refuse(exchange, &refusal);
}

static void append(pm_exchange ***end, pm_exchange *exchange)
{
    exchange->next = NULL;
    **end = exchange;
    *end = &exchange->next;
}

/* The reading thread: one exchange after the other. */
static void *read_exchanges(void *argument)
{
    pm_server *server = argument;
    pthread_mutex_lock(&server->lock);
    for (;;) {
        while (!server->inbox && !server->read_no_more)
            pthread_cond_wait(&server->came, &server->lock);
        pm_exchange *exchange = server->inbox;
        if (!exchange)
            break;
        server->inbox = exchange->next;
        if (!server->inbox)
            server->inbox_end = &server->inbox;
        bool stop = server->stop;
        pthread_mutex_unlock(&server->lock);
        exchange->next = NULL;
        if (stop)
            refuse_stopping(exchange);
        else if (!pm_exchange_left(exchange))
            exchange->route->work(exchange);
        bool ready = exchange->job != NULL;
        if (!ready)
            pm_exchange_drop(exchange);
        pthread_mutex_lock(&server->lock);
        if (ready)
            append(&server->ready_end, exchange);
        server->reading--;
        ring(server->wake);
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

/* Begins to answer what has been read. */
static void take_in(pm_server *server)
{
    pthread_mutex_lock(&server->lock);
    pm_exchange *exchange = server->ready, *next;
    server->ready = NULL;
    server->ready_end = &server->ready;
    pthread_mutex_unlock(&server->lock);
    for (; exchange; exchange = next) {
        next = exchange->next;
        exchange->next = NULL;
        if (pm_exchange_left(exchange))
            pm_job_drop(exchange->job, NULL);
        else
            pm_job_start(exchange->job);
        pm_exchange_drop(exchange);
    }
}

/* Ends the reading thread, and begins to answer what it has read. */
static void end_reading(pm_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->read_no_more = true;
    pthread_cond_signal(&server->came);
    pthread_mutex_unlock(&server->lock);
    pthread_join(server->reader, NULL);
    take_in(server);
}

/* Looks at the sockets of n suspended connections, and wakes those whose client has left. Only this thread wakes
 * those that have a job, so that they are suspended still, and their sockets theirs. */
static void look(pm_exchange **exchanges, struct pollfd *watched, size_t n)
{
    if (n == 0 || poll(watched, n, 0) <= 0)
        return;
    for (size_t i = 0; i < n; i++) {
        if (!(watched[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)))
            continue;
        pthread_mutex_lock(&exchanges[i]->lock);
        exchanges[i]->gone = true;
        pthread_mutex_unlock(&exchanges[i]->lock);
    }
}

/* Ends the work for clients that have left. */
static void notice_leavers(pm_server *server)
{
    struct pollfd watched[WATCHED_MAX];
    pm_exchange *watching[WATCHED_MAX];
    size_t n = 0;
    for (pm_exchange *exchange = server->answering; exchange; exchange = exchange->next) {
        pthread_mutex_lock(&exchange->lock);
        bool waits = exchange->suspended;
        pthread_mutex_unlock(&exchange->lock);
        if (!waits)
            continue;
        watching[n] = exchange;
        watched[n++] = (struct pollfd){.fd = exchange->fd, .events = POLLRDHUP};
        if (n == WATCHED_MAX) {
            look(watching, watched, n);
            n = 0;
        }
    }
    look(watching, watched, n);
    for (pm_exchange *exchange = server->answering; exchange; exchange = exchange->next)
        if (pm_exchange_left(exchange))
            pm_job_cancel(exchange->job);
}

/* A long prompt takes a while to read, and a turn to come: proxies and clients close streams that say nothing. */
static void ping_streams(pm_server *server)
{
    double silent = pm_clock() - server->options.timeout / PING_PART;
    for (pm_exchange *exchange = server->answering; exchange; exchange = exchange->next) {
        pm_job *job = exchange->job;
        if (job->ask.stream && !job->failed && exchange->written < silent)
            pm_job_ping(job);
    }
}

/* ---- the thread ---- */

/* Whether to stop: when all is answered, or the time for that is over. Nothing is begun any more then, but what is
 * being read. */
static bool is_over(pm_server *server)
{
    pthread_mutex_lock(&server->lock);
    bool answered = !server->reading && !server->ready && !server->answering;
    bool over = server->stop && (answered || pm_clock() > server->deadline);
    pthread_mutex_unlock(&server->lock);
    return over;
}

/* Refuses what is being answered. */
static void give_up(pm_server *server)
{
    pm_refusal refusal;
    pm_refuse(&refusal, 503, "stopping", NULL, "the server has stopped");
    refusal.retry_after = 10;
    for (pm_exchange *exchange = server->answering; exchange; exchange = exchange->next)
        pm_job_fail(exchange->job, &refusal);
}

static void serve(pm_server *server)
{
    while (!is_over(server)) {
        take_in(server);
        notice_leavers(server);
        ping_streams(server);
        if (!pm_scheduler_step(server->scheduler))
            wait_for(server->wake, -1);
        pm_worker_publish(server);
    }
    end_reading(server);
    give_up(server);
}

static void *run(void *argument)
{
    pm_server *server = argument;
    int status = load(server, &server->failure);
    if (status == PM_OK && pthread_create(&server->reader, NULL, read_exchanges, server) != 0) {
        server->failure = (pm_error){PM_ERR_MEMORY, "the reading thread cannot be started"};
        status = PM_ERR_MEMORY;
    }
    server->stage = status == PM_OK ? PM_READY : PM_FAILED;
    ring(server->wake_main);
    if (status == PM_OK)
        serve(server);
    pm_scheduler_free(server->scheduler);
    pm_constraints_free(server);
    pm_engine_close(server->engine);
    return NULL;
}

bool pm_worker_start(pm_server *server)
{
    server->inbox_end = &server->inbox;
    server->ready_end = &server->ready;
    pthread_cond_init(&server->came, NULL);
    pthread_mutex_init(&server->lock, NULL);
    return pthread_create(&server->thread, NULL, run, server) == 0;
}

void pm_worker_take(pm_server *server, pm_exchange *exchange)
{
    pthread_mutex_lock(&server->lock);
    bool over = server->read_no_more;
    if (!over) {
        pm_exchange_hold(exchange);
        append(&server->inbox_end, exchange);
        server->reading++;
        pthread_cond_signal(&server->came);
    }
    pthread_mutex_unlock(&server->lock);
    if (over)
        refuse_stopping(exchange);
}

void pm_worker_stop(pm_server *server, double deadline)
{
    int loading = PM_READY;
    atomic_compare_exchange_strong(&server->stage, &loading, PM_DRAINING);
    pthread_mutex_lock(&server->lock);
    server->stop = true;
    server->deadline = deadline;
    pthread_mutex_unlock(&server->lock);
    ring(server->wake);
}

void pm_worker_join(pm_server *server)
{
    pthread_join(server->thread, NULL);
}
