#define _GNU_SOURCE /* POLLRDHUP */
#include "http.h"

#include "job.h"
#include "page.h"
#include "worker.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 10000,
    HEADERS_MAX = 32 << 10, /* bytes of a request's head, and of a piece of an answer */
    PIECE = 16 << 10,       /* bytes of an answer that are asked for at once, at most */
    BODIES_MAX = 8          /* bodies of --max-body that are held at once, at most */
};

/* ---- connections that take too long ----
 *
 * libmicrohttpd closes those on which nothing happens; one that sends a byte now and then would stay for ever. And it
 * is told only once (its epoll is edge-triggered) that data have come together with the end of what the client sends:
 * having read the data it waits for more, and keeps the connection and its body until the time is over. */

typedef struct pm_guest {
    int fd;
    double deadline; /* pm_clock until which a whole request must have come, or some of an answer been taken; 0: none */
    bool left;       /* the client had hung up when pm_http_guard last looked, and nothing has happened since */
    struct pm_guest *next, **before;
} pm_guest;

static void set_deadline(pm_server *server, pm_guest *guest, bool waiting)
{
    pthread_mutex_lock(&server->guests_lock);
    guest->deadline = waiting ? pm_clock() + server->options.timeout : 0;
    guest->left = false;
    pthread_mutex_unlock(&server->guests_lock);
}

void pm_http_turn(pm_exchange *exchange)
{
    set_deadline(exchange->server, exchange->guest, true);
}

static pm_guest *guest_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static int fd_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    pm_server *server = cls;
    pm_guest *guest = *context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        guest = calloc(1, sizeof(*guest));
        *context = guest;
        if (!guest)
            return; /* its first request is refused */
        guest->fd = fd_of(connection);
        guest->deadline = pm_clock() + server->options.timeout;
        pthread_mutex_lock(&server->guests_lock);
        guest->next = server->guests;
        guest->before = &server->guests;
        if (guest->next)
            guest->next->before = &guest->next;
        server->guests = guest;
        pthread_mutex_unlock(&server->guests_lock);
    } else if (guest) {
        pthread_mutex_lock(&server->guests_lock);
        *guest->before = guest->next;
        if (guest->next)
            guest->next->before = guest->before;
        pthread_mutex_unlock(&server->guests_lock);
        free(guest);
    }
}

static bool has_left(const pm_guest *guest)
{
    struct pollfd watched = {.fd = guest->fd, .events = POLLRDHUP};
    return poll(&watched, 1, 0) > 0;
}

/* One that has just hung up may be at work for a moment. */
void pm_http_guard(pm_server *server)
{
    double now = pm_clock();
    pthread_mutex_lock(&server->guests_lock);
    for (pm_guest *guest = server->guests; guest; guest = guest->next) {
        bool waiting = guest->deadline > 0, left = waiting && has_left(guest);
        if (waiting && (now > guest->deadline || (left && guest->left)))
            shutdown(guest->fd, SHUT_RDWR);
        guest->left = left;
    }
    pthread_mutex_unlock(&server->guests_lock);
}

/* ---- a request ---- */

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* Whether a name, with or without a port, is this machine's own. */
static bool is_own_name(const pm_server *server, const char *host)
{
    static const char *const names[] = {"localhost", "[::1]"};
    const char *given = server->options.host;
    struct in_addr address;
    char name[256];
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    if (n >= sizeof(name) || n > strlen(host))
        return false;
    snprintf(name, sizeof(name), "%.*s", (int)n, host);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strcasecmp(name, names[i]) == 0)
            return true;
    return (given && strcasecmp(name, given) == 0) ||
           (inet_pton(AF_INET, name, &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
}

/* A page can give its own name the address of this machine and then ask as if it had come from here ("DNS rebinding"),
 * but not hide that name. Without keys it is all there is to tell. */
static bool is_rebound(const pm_server *server, struct MHD_Connection *connection)
{
    const char *host = header_of(connection, "Host");
    return server->local && !server->n_keys && host && !is_own_name(server, host);
}

/* Whether a page of this origin may ask: that of --cors, or one that this server itself has given out. */
static bool origin_allowed(const pm_server *server, struct MHD_Connection *connection, const char *origin)
{
    const char *cors = server->options.cors, *host = header_of(connection, "Host"), *name = strstr(origin, "://");
    if (cors && (strcmp(cors, "*") == 0 || strcasecmp(cors, origin) == 0))
        return true;
    bool web = strncasecmp(origin, "http://", 7) == 0 || strncasecmp(origin, "https://", 8) == 0;
    return host && web && strcasecmp(name + 3, host) == 0;
}

/* What can be said against a request by its head. */
static bool check_head(pm_exchange *exchange, const char *method, const char *url)
{
    const pm_server *server = exchange->server;
    struct MHD_Connection *connection = exchange->connection;
    pm_refusal *refusal = &exchange->refusal;
    char allowed[64];
    const char *origin = header_of(connection, "Origin"), *length = header_of(connection, "Content-Length");
    const char *rest = NULL;
    exchange->anthropic = header_of(connection, "anthropic-version") != NULL;
    exchange->route = pm_route_find(method, url, &rest, allowed);
    if (exchange->route && exchange->route->prefix)
        snprintf(exchange->rest, sizeof(exchange->rest), "%s", rest);
    snprintf(exchange->allowed, sizeof(exchange->allowed), "%s", allowed);
    if (strcmp(method, "OPTIONS") == 0 && *allowed)
        return true;
    if (!exchange->route && *allowed)
        return pm_refuse(refusal, 405, "method_not_allowed", NULL, "%s takes %s, not %s", exchange->path, allowed,
                         exchange->method);
    if (!exchange->route)
        return pm_refuse(refusal, 404, "not_found", NULL, "there is nothing at %s", exchange->path);
    if (!exchange->route->open && server->n_keys && !pm_keys_match(server, header_of(connection, "Authorization")) &&
        !pm_keys_match(server, header_of(connection, "X-Api-Key")))
        return pm_refuse(refusal, 401, "invalid_api_key", NULL,
                         "a key is missing or wrong: it goes into the header Authorization, after 'Bearer '");
    if (!exchange->route->open && is_rebound(server, connection))
        return pm_refuse(refusal, 403, "host_not_allowed", NULL,
                         "this server is known by this machine's own names only, unless it has keys (--api-key-file)");
    if (strcmp(method, "POST") == 0 && origin && !origin_allowed(server, connection, origin))
        return pm_refuse(refusal, 403, "origin_not_allowed", NULL,
                         "pages of other origins may not ask; the option --cors allows one");
    if (length && strtoull(length, NULL, 10) > server->options.max_body)
        return pm_refuse(refusal, 413, "body_too_large", NULL, "the request has %.32s bytes, more than %zu", length,
                         server->options.max_body);
    if (exchange->route->work && server->stage != PM_READY) {
        pm_refuse(refusal, 503, "not_ready", NULL, "%s",
                  server->stage == PM_LOADING ? "the model is being loaded" : "the server is stopping");
        refusal->retry_after = server->stage == PM_LOADING ? 2 : 10;
        return false;
    }
    return true;
}

/* Text of the client's for messages and the log: printable ASCII, cut. */
static void copy_word(char *out, size_t size, const char *text)
{
    size_t n = 0;
    for (; text[n] && n + 1 < size; n++)
        out[n] = text[n] > ' ' && text[n] < 0x7f && text[n] != '"' && text[n] != '\\' ? text[n] : '?';
    out[n] = '\0';
}

static pm_exchange *new_exchange(pm_server *server, struct MHD_Connection *connection, const char *url,
                                 const char *method)
{
    pm_guest *guest = guest_of(connection);
    pm_exchange *exchange = guest ? pm_exchange_new(server) : NULL;
    if (!exchange)
        return NULL;
    exchange->guest = guest;
    exchange->connection = connection;
    exchange->fd = fd_of(connection);
    copy_word(exchange->path, sizeof(exchange->path), url);
    copy_word(exchange->method, sizeof(exchange->method), method);
    check_head(exchange, method, url);
    return exchange;
}

/* Keeps a piece of the body, unless the request is refused already: then it is read and thrown away, since a client
 * that is still sending would not see the answer. */
static void take_body(pm_exchange *exchange, const char *data, size_t size)
{
    pm_server *server = exchange->server;
    pm_refusal *refusal = &exchange->refusal;
    if (!refusal->status && exchange->body.len + size > server->options.max_body)
        pm_refuse(refusal, 413, "body_too_large", NULL, "the request has more than %zu bytes",
                  server->options.max_body);
    if (!refusal->status && server->bodies + size > server->options.max_body * BODIES_MAX) {
        pm_refuse(refusal, 503, "busy", NULL, "too many large requests are being read");
        refusal->retry_after = 1;
    }
    if (!refusal->status) {
        pm_str_add(&exchange->body, data, size);
        server->bodies += exchange->body.failed ? 0 : size;
        if (exchange->body.failed)
            pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    }
    if (refusal->status)
        pm_exchange_free_body(exchange);
}

/* ---- its answer ---- */

/* Gives libmicrohttpd what has been written, or suspends the connection until there is something. */
static ssize_t read_answer(void *cls, uint64_t position, char *out, size_t max)
{
    pm_exchange *exchange = cls;
    ssize_t n = 0;
    (void)position;
    pthread_mutex_lock(&exchange->lock);
    size_t ready = exchange->out.len - exchange->sent;
    if (exchange->gone || exchange->cut) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (ready) {
        n = (ssize_t)(ready < max ? ready : max);
        memcpy(out, exchange->out.data + exchange->sent, (size_t)n);
        exchange->sent += (size_t)n;
    } else if (exchange->done) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        exchange->suspended = true;
        set_deadline(exchange->server, exchange->guest, false);
        MHD_suspend_connection(exchange->connection);
    }
    if (n)
        set_deadline(exchange->server, exchange->guest, n > 0);
    pthread_mutex_unlock(&exchange->lock);
    return n;
}

static void drop_exchange(void *cls)
{
    pm_exchange_drop(cls);
}

/* The headers that say which pages may ask. */
static void add_cors(const pm_exchange *exchange, struct MHD_Response *response, bool preflight)
{
    const char *cors = exchange->server->options.cors, *origin = header_of(exchange->connection, "Origin");
    const char *headers = header_of(exchange->connection, "Access-Control-Request-Headers");
    if (!cors)
        return;
    MHD_add_response_header(response, "Vary", "Origin");
    if (!origin || !origin_allowed(exchange->server, exchange->connection, origin))
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Origin", strcmp(cors, "*") == 0 ? "*" : origin);
    MHD_add_response_header(response, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (!preflight)
        return;
    MHD_add_response_header(response, "Access-Control-Allow-Methods", exchange->allowed);
    MHD_add_response_header(response, "Access-Control-Allow-Headers",
                            headers ? headers : "Authorization, Content-Type, X-Api-Key");
    MHD_add_response_header(response, "Access-Control-Max-Age", "600");
}

/* Queues the answer that has begun: of `size` bytes, or as a stream. */
static enum MHD_Result respond(pm_exchange *exchange, uint64_t size)
{
    bool preflight = strcmp(exchange->method, "OPTIONS") == 0 && exchange->status == 204;
    struct MHD_Response *response =
        MHD_create_response_from_callback(size, PIECE, read_answer, exchange, drop_exchange);
    char number[16];
    if (!response)
        return MHD_NO;
    pm_exchange_hold(exchange);
    if (exchange->type)
        MHD_add_response_header(response, "Content-Type", exchange->type);
    MHD_add_response_header(response, "X-Request-Id", exchange->id);
    if (exchange->etag)
        pm_page_headers(exchange->etag, response);
    else
        MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (size == MHD_SIZE_UNKNOWN)
        MHD_add_response_header(response, "X-Accel-Buffering", "no");
    if (exchange->retry_after) {
        snprintf(number, sizeof(number), "%d", exchange->retry_after);
        MHD_add_response_header(response, "Retry-After", number);
    }
    if (exchange->status == 401)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (*exchange->allowed && (preflight || exchange->status == 405))
        MHD_add_response_header(response, "Allow", exchange->allowed);
    if (exchange->server->stage == PM_DRAINING)
        MHD_add_response_header(response, "Connection", "close");
    add_cors(exchange, response, preflight);
    enum MHD_Result queued = MHD_queue_response(exchange->connection, (unsigned)exchange->status, response);
    MHD_destroy_response(response);
    return queued;
}

/* Answers when there is something to say, else waits for it. */
static enum MHD_Result respond_or_wait(pm_exchange *exchange)
{
    pthread_mutex_lock(&exchange->lock);
    uint64_t size = exchange->done ? exchange->out.len : MHD_SIZE_UNKNOWN;
    bool left = exchange->gone || exchange->cut, begun = exchange->status != 0;
    if (!left && !begun) {
        exchange->suspended = true;
        MHD_suspend_connection(exchange->connection);
    }
    pthread_mutex_unlock(&exchange->lock);
    if (left)
        return MHD_NO;
    /* Not under the lock, which read_answer takes under one of libmicrohttpd's. What is not yet sent is only added to.
     */
    return begun ? respond(exchange, size) : MHD_YES;
}

/* A request is there as a whole. */
static void hand_over(pm_exchange *exchange)
{
    pm_str nothing = {0};
    exchange->handed = true;
    if (exchange->refusal.status)
        pm_exchange_refuse(exchange, &exchange->refusal);
    else if (!exchange->route)
        pm_exchange_text(exchange, 204, NULL, &nothing); /* OPTIONS */
    else if (exchange->route->answer)
        exchange->route->answer(exchange);
    else
        pm_worker_take(exchange->server, exchange);
}

/* libmicrohttpd calls this when the head is there, for every piece of the body, at its end, and after a suspension. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *size, void **state)
{
    pm_exchange *exchange = *state;
    (void)version;
    if (!exchange) {
        exchange = *state = new_exchange(cls, connection, url, method);
        if (!exchange)
            return MHD_NO;
        const char *expect = header_of(connection, "Expect");
        if (!exchange->refusal.status || !expect)
            return MHD_YES;
        hand_over(exchange); /* the client waits for a word before it sends the body */
        return respond_or_wait(exchange);
    }
    if (*size) {
        take_body(exchange, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!exchange->handed) {
        set_deadline(exchange->server, exchange->guest, false);
        hand_over(exchange);
    }
    return respond_or_wait(exchange);
}

/* ---- its end ---- */

static void count(pm_counters *counters, const pm_exchange *exchange, int status)
{
    const pm_record *record = &exchange->record;
    counters->requests[status == 499 ? 0 : status / 100]++;
    counters->total += pm_clock() - exchange->arrived;
    counters->answered += record->finish != NULL;
    counters->prompt += record->prompt;
    counters->cached += record->cached;
    counters->answer += record->answer;
    counters->queue += record->queue;
    counters->prefill += record->prefill;
    counters->decode += record->decode;
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    pm_server *server = cls;
    pm_exchange *exchange = *state;
    (void)connection;
    if (!exchange)
        return;
    pthread_mutex_lock(&exchange->lock);
    bool whole = code == MHD_REQUEST_TERMINATED_COMPLETED_OK && exchange->done && !exchange->cut && !exchange->gone;
    exchange->gone = true;
    int status = whole ? exchange->status : 499;
    count(&server->counters, exchange, status);
    pm_log_request(&server->log, exchange, status);
    pthread_mutex_unlock(&exchange->lock);
    set_deadline(server, exchange->guest, true);
    pm_exchange_drop(exchange);
    *state = NULL;
}

/* ---- the whole ---- */

/* As many connections as there may be: files for others must be left. */
static unsigned connection_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 256;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t most = limit.rlim_cur > 192 ? limit.rlim_cur - 128 : 64;
    return most < CONNECTIONS_MAX ? (unsigned)most : CONNECTIONS_MAX;
}

static void on_complaint(void *cls, const char *format, va_list list)
{
    (void)cls; /* what libmicrohttpd says of clients is theirs to notice */
    (void)format;
    (void)list;
}

int pm_http_start(pm_server *server, pm_error *err)
{
    pthread_mutex_init(&server->guests_lock, NULL);
    unsigned seconds = (unsigned)server->options.timeout;
    server->daemon = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, server,
        MHD_OPTION_EXTERNAL_LOGGER, on_complaint, NULL, MHD_OPTION_LISTEN_SOCKET, server->listener,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,
        MHD_OPTION_CONNECTION_LIMIT, connection_limit(), MHD_OPTION_CONNECTION_TIMEOUT, seconds ? seconds : 1u,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADERS_MAX, MHD_OPTION_END);
    if (server->daemon)
        return PM_OK;
    err->code = PM_ERR_IO;
    snprintf(err->message, sizeof(err->message), "HTTP cannot be started on %s", server->listening);
    return PM_ERR_IO;
}

void pm_http_quiesce(pm_server *server)
{
    MHD_quiesce_daemon(server->daemon);
    close(server->listener);
}

void pm_http_stop(pm_server *server)
{
    MHD_stop_daemon(server->daemon);
    server->daemon = NULL;
    pthread_mutex_destroy(&server->guests_lock);
}
