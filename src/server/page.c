/* Answers with the files of the web page. */
#include "page.h"

#include "state.h"

#include <string.h>

/* What the page may do: load its own files and talk to its own server, and nothing else; no script or style that is
 * not a file of its own, no text that becomes markup (Trusted Types without a policy). */
static const char *const headers[][2] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
     "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"},
    {"Cache-Control", "no-cache"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
};

void pm_page_headers(const char *etag, struct MHD_Response *response)
{
    MHD_add_response_header(response, "ETag", etag);
    for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++)
        MHD_add_response_header(response, headers[i][0], headers[i][1]);
}

static const pm_page_file *find(const char *path)
{
    const char *wanted = strcmp(path, "/") == 0 ? "/index.html" : path;
    for (size_t i = 0; i < pm_page_count; i++)
        if (strcmp(pm_page_files[i].path, wanted) == 0)
            return &pm_page_files[i];
    return NULL;
}

/* Whether an If-None-Match names this tag: "*", or a list of tags, weak ones too (RFC 9110, 13.1.2). */
static bool has_tag(const char *list, const char *etag)
{
    return list && (strcmp(list, "*") == 0 || strstr(list, etag));
}

void pm_answer_page(pm_exchange *exchange)
{
    const pm_page_file *file = find(exchange->route->path);
    pm_str text = {0};
    pm_refusal refusal;
    if (!file) {
        pm_refuse(&refusal, 404, "not_found", NULL, "there is nothing at %s", exchange->path);
        pm_exchange_refuse(exchange, &refusal);
        return;
    }
    const char *known = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND, "If-None-Match");
    bool same = has_tag(known, file->etag);
    if (!same)
        pm_str_add(&text, (const char *)file->data, file->len);
    exchange->etag = file->etag;
    pm_exchange_text(exchange, same ? 304 : 200, file->type, &text);
}
