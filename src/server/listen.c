/* The socket that clients come to, and the keys that they bring. */
#include "http.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { FIRST_HANDED = 3 };

static int fail(pm_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int fail(pm_error *err, int code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(err->message, sizeof(err->message), format, list);
    va_end(list);
    err->code = (pm_status)code;
    return code;
}

/* The socket that systemd hands over (sd_listen_fds(3)); -1 when there is none. */
static int handed_socket(void)
{
    const char *count = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    if (!count || !pid || strtol(pid, NULL, 10) != (long)getpid() || strtol(count, NULL, 10) < 1)
        return -1;
    return FIRST_HANDED;
}

static bool is_local(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_UNIX)
        return true;
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return address->ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127));
}

/* A socket bound to the host and port of the options. */
static int bind_socket(const pm_serve_options *options, int *out, pm_error *err)
{
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    snprintf(service, sizeof(service), "%d", options->port);
    int code = getaddrinfo(options->host, service, &hints, &found);
    if (code != 0)
        return fail(err, PM_ERR_INVALID, "--host '%.256s': %s", options->host, gai_strerror(code));
    int yes = 1, fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int status = PM_OK;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0)
        status =
            fail(err, PM_ERR_IO, "cannot listen on %.256s, port %d: %s", options->host, options->port, strerror(errno));
    freeaddrinfo(found);
    if (status == PM_OK)
        *out = fd;
    else if (fd >= 0)
        close(fd);
    return status;
}

int pm_listen(pm_server *server, pm_error *err)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    char host[128] = "", port[16] = "";
    int fd = handed_socket();
    int status = fd < 0 ? bind_socket(&server->options, &fd, err) : PM_OK;
    if (status != PM_OK)
        return status;
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return fail(err, PM_ERR_IO, "the socket that was handed over is none: %s", strerror(errno));
    server->local = is_local(&address);
    if (!server->local && !server->n_keys && !server->options.no_auth) {
        close(fd);
        return fail(err, PM_ERR_INVALID,
                    "others could ask on '%.128s' too: give --api-key-file, or --no-auth if anybody may",
                    server->options.host);
    }
    server->listener = fd;
    getnameinfo((struct sockaddr *)&address, size, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(server->listening, sizeof(server->listening), strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s", host,
             port);
    return PM_OK;
}

/* ---- keys ---- */

int pm_keys_read(pm_server *server, pm_error *err)
{
    const char *path = server->options.api_key_file;
    char line[512];
    size_t cap = 0;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!path)
        return PM_OK;
    if (!file)
        return fail(err, PM_ERR_IO, "%.512s: %s", path, strerror(errno));
    int status = PM_OK;
    while (status == PM_OK && fgets(line, sizeof(line), file)) {
        size_t n = strlen(line);
        while (n && isspace((unsigned char)line[n - 1]))
            line[--n] = '\0';
        if (n == 0 || *line == '#')
            continue;
        if (server->n_keys == cap) {
            char **keys = realloc(server->keys, (cap * 2 + 8) * sizeof(*keys));
            if (!keys) {
                status = fail(err, PM_ERR_MEMORY, "out of memory");
                break;
            }
            server->keys = keys;
            cap = cap * 2 + 8;
        }
        if (!(server->keys[server->n_keys] = strdup(line)))
            status = fail(err, PM_ERR_MEMORY, "out of memory");
        else
            server->n_keys++;
    }
    if (status == PM_OK && ferror(file))
        status = fail(err, PM_ERR_IO, "%.512s: cannot be read", path);
    else if (status == PM_OK && server->n_keys == 0)
        status = fail(err, PM_ERR_INVALID, "%.512s: has no key", path);
    fclose(file);
    return status;
}

void pm_keys_free(pm_server *server)
{
    for (size_t i = 0; i < server->n_keys; i++)
        free(server->keys[i]);
    free(server->keys);
}

/* In time that does not tell how much of the key is right. */
static bool same_key(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned differs = n != m;
    for (size_t i = 0; i < m; i++)
        differs |= (unsigned char)given[i] ^ (unsigned char)key[i % n];
    return !differs;
}

bool pm_keys_match(const pm_server *server, const char *header)
{
    static const char bearer[] = "Bearer ";
    bool found = false;
    if (!header)
        return false;
    if (strncasecmp(header, bearer, sizeof(bearer) - 1) == 0)
        header += sizeof(bearer) - 1;
    for (size_t i = 0; i < server->n_keys; i++)
        found |= same_key(server->keys[i], header);
    return found;
}
