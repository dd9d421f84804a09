/* Requests to a server, any number at a time on one thread. */
#include "remote.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_SECONDS = 15, DEFAULT_TIMEOUT = 600, MAX_HEADERS = 256 << 10 };

/* ---- one request ---- */

/* libcurl calls this several times a second. */
static int on_progress(void *user, curl_off_t all, curl_off_t now, curl_off_t all_up, curl_off_t now_up)
{
    pm_stream *stream = user;
    (void)all, (void)now, (void)all_up, (void)now_up;
    if (pm_seconds() - stream->heard <= (double)stream->remote->timeout)
        return 0;
    if (!stream->failed)
        pm_stream_fail(stream, "%s: has sent nothing for %ld seconds", stream->url, stream->remote->timeout);
    return 1;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *user)
{
    pm_stream *stream = user;
    (void)bytes;
    stream->headers += size * n;
    stream->heard = pm_seconds();
    if (stream->headers <= MAX_HEADERS)
        return size * n;
    pm_stream_fail(stream, "%s: sends more than %d kB of headers", stream->url, MAX_HEADERS >> 10);
    return 0;
}

static long status_of(const pm_stream *stream)
{
    long status = 0;
    curl_easy_getinfo(stream->easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

/* Only an answer with status 200 to a request with on_event is a stream; anything else is kept. */
static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    pm_stream *stream = user;
    bool events = stream->on_event && status_of(stream) == 200;
    stream->heard = pm_seconds();
    bool fine = events ? pm_stream_take(stream, bytes, size * n) : pm_stream_keep(stream, bytes, size * n);
    return fine && !stream->done ? size * n : CURL_WRITEFUNC_ERROR;
}

/* Two texts in one, malloc'ed; NULL when out of memory. */
static char *join(const char *first, const char *second)
{
    size_t n = strlen(first), m = strlen(second);
    char *both = malloc(n + m + 1);
    if (both) {
        memcpy(both, first, n);
        memcpy(both + n, second, m + 1);
    }
    return both;
}

/* What every request has; false when libcurl refuses. */
static bool prepare(pm_stream *stream, pm_remote *remote, const char *path)
{
    char tail[64];
    snprintf(tail, sizeof(tail), "/v1/%s", path);
    stream->remote = remote;
    stream->heard = pm_seconds();
    stream->easy = curl_easy_init();
    stream->url = join(remote->base, tail);
    if (!stream->easy || !stream->url)
        return false;
    CURL *easy = stream->easy;
    return curl_easy_setopt(easy, CURLOPT_URL, stream->url) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HTTPHEADER, remote->headers) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_USERAGENT, "polymath/" PM_VERSION) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, on_progress) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_XFERINFODATA, stream) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_HEADERDATA, stream) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEDATA, stream) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, stream->detail) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PRIVATE, stream) == CURLE_OK;
}

bool pm_stream_start(pm_stream *stream, pm_remote *remote, const char *path, const json_t *request)
{
    bool fine = prepare(stream, remote, path);
    stream->body = fine && request ? json_dumps(request, JSON_COMPACT) : NULL;
    if (fine && request)
        fine = stream->body && curl_easy_setopt(stream->easy, CURLOPT_POSTFIELDS, stream->body) == CURLE_OK;
    return fine && curl_multi_add_handle(remote->multi, stream->easy) == CURLM_OK;
}

void pm_stream_close(pm_stream *stream)
{
    if (stream->easy) {
        curl_multi_remove_handle(stream->remote->multi, stream->easy);
        curl_easy_cleanup(stream->easy);
    }
    free(stream->url);
    free(stream->body);
    free(stream->data);
    stream->easy = NULL;
    stream->url = stream->body = stream->data = NULL;
}

/* The sentence of an error's envelope, OpenAI's or Anthropic's, or what the status means. */
static void explain_status(pm_stream *stream, long status)
{
    json_t *root = stream->used ? json_loadb(stream->data, stream->used, 0, NULL) : NULL;
    json_t *error = json_object_get(root, "error");
    const char *message = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    const char *hint = status == 401 && !stream->remote->key ? " (--api-key-file names a file with the key)" : "";
    const char *target = NULL;
    curl_easy_getinfo(stream->easy, CURLINFO_REDIRECT_URL, &target);
    if (target)
        pm_stream_fail(stream, "%s: is at %s now", stream->url, target);
    else if (message)
        pm_stream_fail(stream, "%s: answers %ld: %s%s", stream->url, status, message, hint);
    else
        pm_stream_fail(stream, "%s: answers %ld, and says nothing more%s", stream->url, status, hint);
    json_decref(root);
}

/* Fills in how a stream has ended. */
static void judge(pm_stream *stream, CURLcode code)
{
    long status = status_of(stream);
    bool ended_here = code == CURLE_WRITE_ERROR && (stream->done || stream->on_event);
    if (stream->failed)
        return;
    if (code != CURLE_OK && !ended_here)
        pm_stream_fail(stream, "%s: %s", stream->url, *stream->detail ? stream->detail : curl_easy_strerror(code));
    else if (status != 200)
        explain_status(stream, status);
    else if (stream->on_event && stream->events == 0)
        pm_stream_fail(stream, "%s: answers, but with no stream of events", stream->url);
}

pm_stream *pm_remote_wait(pm_remote *remote)
{
    while (!pm_interrupted()) {
        int running, left;
        if (curl_multi_perform(remote->multi, &running) != CURLM_OK)
            return NULL;
        CURLMsg *message = curl_multi_info_read(remote->multi, &left);
        if (message && message->msg == CURLMSG_DONE) {
            pm_stream *stream = NULL;
            CURLcode code = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)&stream);
            judge(stream, code);
            return stream;
        }
        if (running == 0)
            return NULL;
        curl_multi_poll(remote->multi, NULL, 0, 200, NULL); /* returns at once on a signal */
    }
    return NULL;
}

/* ---- the server ---- */

/* Checks --url and keeps it without what follows the server's own path; an exit code. */
static int take_url(pm_remote *remote, const char *text)
{
    CURLU *url = curl_url();
    char *scheme = NULL, *extra = NULL;
    int code = PM_EXIT_OK;
    if (!url)
        return pm_cli_fail("out of memory");
    CURLUcode wrong = curl_url_set(url, CURLUPART_URL, text, 0);
    if (wrong != CURLUE_OK)
        code = pm_cli_usage("--url takes an address such as http://127.0.0.1:8080, not '%s': %s", text,
                            curl_url_strerror(wrong));
    else if (curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
             (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
        code = pm_cli_usage("--url takes an address that begins with http:// or https://, not '%s'", text);
    else if (curl_url_get(url, CURLUPART_QUERY, &extra, 0) == CURLUE_OK ||
             curl_url_get(url, CURLUPART_FRAGMENT, &extra, 0) == CURLUE_OK)
        code = pm_cli_usage("--url takes an address without '?' and '#', not '%s'", text);
    curl_free(scheme);
    curl_free(extra);
    curl_url_cleanup(url);
    if (code != PM_EXIT_OK)
        return code;
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '/')
        len--;
    if (len > 3 && memcmp(text + len - 3, "/v1", 3) == 0)
        len -= 3;
    while (len > 0 && text[len - 1] == '/')
        len--;
    remote->base = strndup(text, len);
    return remote->base ? PM_EXIT_OK : pm_cli_fail("out of memory");
}

static bool add_header(pm_remote *remote, const char *header)
{
    struct curl_slist *longer = curl_slist_append(remote->headers, header);
    if (longer)
        remote->headers = longer;
    return longer != NULL;
}

/* Adds the key in the first line of the file, if one is named; an exit code. */
static int take_key(pm_remote *remote, const char *path)
{
    char *text = NULL, *header = NULL;
    size_t len;
    if (!path)
        return PM_EXIT_OK;
    int code = pm_read_text(path, &text, &len);
    if (code != PM_EXIT_OK)
        return code;
    size_t n = 0;
    while (n < len && isgraph((unsigned char)text[n]))
        n++;
    if (n == 0 || (n < len && !isspace((unsigned char)text[n])))
        code = pm_cli_fail("%s: does not begin with a key, which is printable characters of ASCII", path);
    text[n] = '\0';
    if (code == PM_EXIT_OK && (!(header = join("Authorization: Bearer ", text)) || !add_header(remote, header)))
        code = pm_cli_fail("out of memory");
    remote->key = code == PM_EXIT_OK;
    free(header);
    free(text);
    return code;
}

/* The name of the server's first model; an exit code. */
static int ask_model(pm_remote *remote)
{
    pm_stream stream = {0};
    int code = PM_EXIT_OK;
    if (!pm_stream_start(&stream, remote, "models", NULL))
        code = pm_cli_fail("out of memory");
    pm_interrupt_begin(NULL);
    bool ended = code == PM_EXIT_OK && pm_remote_wait(remote);
    bool interrupted = pm_interrupted();
    pm_interrupt_end(false);
    if (code == PM_EXIT_OK && interrupted)
        code = PM_EXIT_INTERRUPTED;
    else if (code == PM_EXIT_OK && (!ended || stream.failed))
        code = pm_cli_fail("%s", ended ? stream.error : "out of memory");
    if (code == PM_EXIT_OK) {
        json_t *root = stream.used ? json_loadb(stream.data, stream.used, 0, NULL) : NULL;
        const char *id = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
        if (!id)
            code = pm_cli_fail("%s: does not list a model; --model names one", stream.url);
        else if (!(remote->model = strdup(id)))
            code = pm_cli_fail("out of memory");
        json_decref(root);
    }
    pm_stream_close(&stream);
    return code;
}

int pm_remote_open(pm_remote *remote, const pm_args *args)
{
    const pm_value *value = args->value;
    *remote =
        (pm_remote){.timeout = value[PM_OPT_TIMEOUT].given ? (long)value[PM_OPT_TIMEOUT].number : DEFAULT_TIMEOUT};
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return pm_cli_fail("cannot set up libcurl");
    remote->multi = curl_multi_init();
    bool fine = remote->multi && add_header(remote, "Content-Type: application/json") && add_header(remote, "Expect:");
    int code = fine ? take_url(remote, value[PM_OPT_URL].text) : pm_cli_fail("out of memory");
    if (code == PM_EXIT_OK)
        code = take_key(remote, value[PM_OPT_API_KEY_FILE].text);
    if (code == PM_EXIT_OK && value[PM_OPT_MODEL].given)
        code = (remote->model = strdup(value[PM_OPT_MODEL].text)) ? PM_EXIT_OK : pm_cli_fail("out of memory");
    else if (code == PM_EXIT_OK)
        code = ask_model(remote);
    if (code != PM_EXIT_OK)
        pm_remote_close(remote);
    return code;
}

void pm_remote_close(pm_remote *remote)
{
    curl_slist_free_all(remote->headers);
    if (remote->multi)
        curl_multi_cleanup(remote->multi);
    curl_global_cleanup();
    free(remote->base);
    free(remote->model);
    *remote = (pm_remote){0};
}
