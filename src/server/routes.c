/* The paths of the API. */
#include "state.h"

#include <stdio.h>
#include <string.h>

static const pm_route routes[] = {
    {"GET", "/health", .open = true, .answer = pm_answer_health},
    {"GET", "/version", .answer = pm_answer_version},
    {"GET", "/v1/models", .answer = pm_answer_models},
    {"GET", "/v1/models/", .prefix = true, .answer = pm_answer_model},
    {"GET", "/metrics", .answer = pm_answer_metrics},
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
