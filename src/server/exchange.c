#include "http.h"
#include "job.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { UNREAD_MAX = 16 << 20 }; /* bytes of a stream that a client may leave unread */

double pm_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Makes UTF-8 of a text that was cut, or that quotes what a client sent. */
static void clean(char *text)
{
    size_t bad;
    while (!pm_utf8_valid(text, strlen(text), &bad))
        text[bad] = '?';
}

bool pm_refuse(pm_refusal *refusal, int status, const char *code, const char *param, const char *format, ...)
{
    va_list list;
    *refusal = (pm_refusal){.status = status, .code = code};
    if (param)
        snprintf(refusal->param, sizeof(refusal->param), "%s", param);
    va_start(list, format);
    vsnprintf(refusal->message, sizeof(refusal->message), format, list);
    va_end(list);
    clean(refusal->param);
    clean(refusal->message);
    return false;
}

bool pm_refuse_at(pm_refusal *refusal, const char *code, const char *why, const char *format, ...)
{
    char place[sizeof(refusal->param)];
    va_list list;
    va_start(list, format);
    vsnprintf(place, sizeof(place), format, list);
    va_end(list);
    return pm_refuse(refusal, 400, code, place, "'%s' %s", place, why);
}

pm_exchange *pm_exchange_new(pm_server *server)
{
    pm_exchange *exchange = calloc(1, sizeof(*exchange));
    uint64_t number;
    if (!exchange || getentropy(&number, sizeof(number)) != 0) {
        free(exchange);
        return NULL;
    }
    snprintf(exchange->id, sizeof(exchange->id), "%016llx", (unsigned long long)number);
    exchange->server = server;
    exchange->arrived = exchange->written = pm_clock();
    exchange->references = 1;
    pthread_mutex_init(&exchange->lock, NULL);
    server->open++;
    return exchange;
}

void pm_exchange_hold(pm_exchange *exchange)
{
    exchange->references++;
}

void pm_exchange_drop(pm_exchange *exchange)
{
    if (--exchange->references > 0)
        return;
    pm_exchange_free_body(exchange);
    exchange->server->open--;
    pthread_mutex_destroy(&exchange->lock);
    pm_str_free(&exchange->out);
    free(exchange);
}

void pm_exchange_free_body(pm_exchange *exchange)
{
    exchange->server->bodies -= exchange->body.len;
    pm_str_free(&exchange->body);
}

/* Wakes the connection when it waits; the lock is held. */
static void wake(pm_exchange *exchange)
{
    if (!exchange->suspended)
        return;
    exchange->suspended = false;
    pm_http_turn(exchange);
    MHD_resume_connection(exchange->connection);
}

void pm_exchange_begin(pm_exchange *exchange, int status, const char *type)
{
    pthread_mutex_lock(&exchange->lock);
    exchange->status = status;
    exchange->type = type;
    pthread_mutex_unlock(&exchange->lock);
}

void pm_exchange_write(pm_exchange *exchange, const char *text, size_t len)
{
    pthread_mutex_lock(&exchange->lock);
    if (exchange->sent == exchange->out.len)
        exchange->sent = exchange->out.len = 0;
    if (exchange->out.len - exchange->sent > UNREAD_MAX)
        exchange->cut = true;
    if (!exchange->cut && !exchange->gone)
        pm_str_add(&exchange->out, text, len);
    exchange->cut |= exchange->out.failed;
    wake(exchange);
    pthread_mutex_unlock(&exchange->lock);
}

void pm_exchange_end(pm_exchange *exchange)
{
    pthread_mutex_lock(&exchange->lock);
    exchange->done = true;
    wake(exchange);
    pthread_mutex_unlock(&exchange->lock);
}

void pm_exchange_text(pm_exchange *exchange, int status, const char *type, pm_str *text)
{
    pthread_mutex_lock(&exchange->lock);
    pm_str_free(&exchange->out);
    exchange->out = *text;
    exchange->sent = 0;
    exchange->cut |= text->failed;
    exchange->status = status;
    exchange->type = type;
    exchange->done = true;
    wake(exchange);
    pthread_mutex_unlock(&exchange->lock);
}

void pm_exchange_json(pm_exchange *exchange, int status, json_t *value)
{
    pm_str text = {0};
    pm_str_json(&text, value);
    pm_exchange_text(exchange, status, "application/json", &text);
}

void pm_exchange_refuse(pm_exchange *exchange, const pm_refusal *refusal)
{
    const pm_dialect *dialect = exchange->route ? exchange->route->dialect : NULL;
    if (!dialect && exchange->anthropic)
        dialect = &pm_messages_dialect;
    pthread_mutex_lock(&exchange->lock);
    exchange->retry_after = refusal->retry_after;
    pthread_mutex_unlock(&exchange->lock);
    pm_exchange_json(exchange, refusal->status,
                     dialect && dialect->error ? dialect->error(refusal) : pm_openai_error(refusal));
}

bool pm_exchange_left(pm_exchange *exchange)
{
    pthread_mutex_lock(&exchange->lock);
    bool left = exchange->gone || exchange->cut;
    pthread_mutex_unlock(&exchange->lock);
    return left;
}
