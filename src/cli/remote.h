/* A server that speaks OpenAI's API, as `chat --url` and `bench --url` use it; over libcurl. Whatever the server sends,
 * memory stays bounded. */
#ifndef PM_REMOTE_H
#define PM_REMOTE_H

#include "cli.h"

#include <curl/curl.h>

typedef struct pm_remote {
    char *base;   /* URL without "/v1" and what follows */
    char *model;  /* that is asked */
    bool key;     /* one is sent */
    long timeout; /* seconds of silence after which a request is given up */
    struct curl_slist *headers;
    CURLM *multi;
} pm_remote;

/* Takes --url, --api-key-file and --model, or asks the server for the name of its first model; an exit code. */
int pm_remote_open(pm_remote *remote, const pm_args *args);
void pm_remote_close(pm_remote *remote);

/* One request whose answer is a stream of events. Zero-initialised, with on_event and user, is ready to start. */
typedef struct pm_stream {
    /* Takes the data of one event, valid during the call; a non-zero return ends the stream. */
    int (*on_event)(void *user, json_t *event);
    void *user;

    pm_remote *remote;
    CURL *easy;
    char *url, *body;
    char *data; /* [cap] an answer that is no stream, or a line and the event before it */
    size_t used, cap;
    size_t event;    /* of `data`: the event so far, its lines joined; the line begins there */
    size_t headers;  /* bytes of them */
    size_t received; /* bytes of the stream */
    size_t events;   /* that came */
    double heard;    /* when the server last sent something (pm_seconds) */
    bool done;       /* "[DONE]" came */
    bool failed;     /* `error` says why; filled when the stream has ended */
    char error[1024];
    char detail[CURL_ERROR_SIZE]; /* libcurl's */
} pm_stream;

/* Posts `request` to a path such as "chat/completions". False when out of memory. */
bool pm_stream_start(pm_stream *stream, pm_remote *remote, const char *path, const json_t *request);

/* Waits until one of the streams has ended, and returns it; NULL after Ctrl-C (pm_interrupted). */
pm_stream *pm_remote_wait(pm_remote *remote);

/* Closes the connection of a stream that has not ended, and frees it; zero-initialised is allowed. */
void pm_stream_close(pm_stream *stream);

/* ---- remote_events.c ---- */

/* Takes bytes of a stream of events (WHATWG's text/event-stream, data fields only); false with stream->error set, or
 * when on_event ended it. */
bool pm_stream_take(pm_stream *stream, const char *bytes, size_t n);

/* Appends to stream->data; false with stream->error set. */
bool pm_stream_keep(pm_stream *stream, const char *bytes, size_t n);

void pm_stream_fail(pm_stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- remote_request.c ---- */

/* The body of a request for an answer to the messages, as the flags have it; NULL after saying why not. */
json_t *pm_remote_request(const pm_remote *remote, const pm_args *args, json_t *messages, const char *tools);

#endif
