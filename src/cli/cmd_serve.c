/* polymath serve: turns words into the options of the server. */
#include "cli.h"

#include "server/server.h"

#include <string.h>

/* Whether a text is an origin as browsers send it, scheme://host with a port or without (RFC 6454, 6.2), or "*". */
static bool is_origin(const char *text)
{
    const char *scheme = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-";
    size_t n = strspn(text, scheme);
    const char *host = text + n + 3;
    return strcmp(text, "*") == 0 ||
           (n > 0 && strncmp(text + n, "://", 3) == 0 && *host && !host[strcspn(host, "/?#@, \t\r\n*")]);
}

int pm_cmd_serve(const pm_args *args)
{
    const pm_value *value = args->value;
    char bundled[4096];
    pm_error err;
    pm_serve_options options = {
        .alias = value[PM_OPT_ALIAS].text,
        .engine = pm_engine_flags(args),
        .parallel = (int)value[PM_OPT_PARALLEL].integer,
        .queue = (int)value[PM_OPT_QUEUE].integer,
        .cache_bytes = (uint64_t)value[PM_OPT_CACHE_MEM].integer,
        .cache_dir = value[PM_OPT_CACHE_DIR].text,
        .disk_bytes = (uint64_t)value[PM_OPT_CACHE_DISK].integer,
        .host = value[PM_OPT_HOST].text,
        .port = value[PM_OPT_PORT].given ? (int)value[PM_OPT_PORT].integer : 8080,
        .api_key_file = value[PM_OPT_API_KEY_FILE].text,
        .no_auth = value[PM_OPT_NO_AUTH].given,
        .cors = value[PM_OPT_CORS].text,
        .max_body = (size_t)value[PM_OPT_MAX_BODY].integer,
        .timeout = value[PM_OPT_TIMEOUT].number,
        .log_file = value[PM_OPT_LOG_FILE].text,
        .log_json = value[PM_OPT_LOG_FORMAT].integer == 1,
    };
    if (options.disk_bytes && !options.cache_dir)
        return pm_cli_usage("--cache-disk needs --cache-dir");
    if (options.cors && !is_origin(options.cors))
        return pm_cli_usage("--cors takes an origin such as https://example.org, without a path, or *, and not '%s'",
                            options.cors);
    int code = pm_find_model(args->n_words > 0 ? args->words[0] : NULL, bundled, sizeof(bundled), &options.model);
    if (code != PM_EXIT_OK)
        return code;
    return pm_serve(&options, &err) == PM_OK ? PM_EXIT_OK : pm_cli_fail("%s", err.message);
}
