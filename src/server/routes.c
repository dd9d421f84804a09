/* The paths of the API. */
#include "job.h"
#include "page.h"
#include "state.h"

#include <stdio.h>
#include <string.h>

static const pm_route routes[] = {
    {"GET", "/health", .open = true, .answer = pm_answer_health},
    {"GET", "/version", .answer = pm_answer_version},
    {"GET", "/v1/models", .answer = pm_answer_models},
    {"GET", "/v1/models/", .prefix = true, .answer = pm_answer_model},
    {"GET", "/metrics", .answer = pm_answer_metrics},
    /* The web page, which asks for a key itself. */
    {"GET", "/", .open = true, .answer = pm_answer_page},
    {"GET", "/index.html", .open = true, .answer = pm_answer_page},
    {"GET", "/style.css", .open = true, .answer = pm_answer_page},
    {"GET", "/app.js", .open = true, .answer = pm_answer_page},
    {"GET", "/api.js", .open = true, .answer = pm_answer_page},
    {"GET", "/markdown.js", .open = true, .answer = pm_answer_page},
    {"GET", "/store.js", .open = true, .answer = pm_answer_page},
    {"GET", "/view.js", .open = true, .answer = pm_answer_page},
    {"GET", "/icon.svg", .open = true, .answer = pm_answer_page},
    {"POST", "/v1/chat/completions", .work = pm_job_read, .dialect = &pm_chat_dialect},
    {"POST", "/v1/completions", .work = pm_job_read, .dialect = &pm_completions_dialect},
    {"POST", "/v1/responses", .work = pm_job_read, .dialect = &pm_responses_dialect},
    {"POST", "/v1/messages", .work = pm_job_read, .dialect = &pm_messages_dialect},
    {"POST", "/v1/messages/count_tokens", .work = pm_work_count_tokens, .dialect = &pm_messages_dialect},
    {"POST", "/tokenize", .work = pm_work_tokenize},
    {"POST", "/detokenize", .work = pm_work_detokenize},
    {"POST", "/apply-template", .work = pm_work_template},
};

const pm_route *pm_route_find(const char *method, const char *path, const char **rest, char allowed[64])
{
    size_t used = 0;
    allowed[0] = '\0';
    for (size_t i = 0; i < sizeof(routes) / sizeof(*routes); i++) {
        const pm_route *route = &routes[i];
        size_t n = strlen(route->path);
        if (strncmp(route->path, path, n) != 0 || (route->prefix ? path[n] == '\0' : path[n] != '\0'))
            continue;
        bool same =
            strcmp(method, route->method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
        *rest = path + n;
        if (same)
            return route;
        used += (size_t)snprintf(allowed + used, 64 - used, "%s%s", used ? ", " : "", route->method);
    }
    return NULL;
}
