/* polymath inspect: what a checkpoint is, whether it can be run, and what memory it takes. */
#include "cli.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

/* A count with a suffix, such as "17.2 M". */
static const char *scaled(double n, double step, const char *const *suffixes, char out[32])
{
    int i = 0;
    while (n >= step && suffixes[i + 1]) {
        n /= step;
        i++;
    }
    snprintf(out, 32, i == 0 ? "%.0f%s" : "%.1f%s", n, suffixes[i]);
    return out;
}

static const char *count(int64_t n, char out[32])
{
    static const char *const suffixes[] = {"", " thousand", " million", " billion", " trillion", NULL};
    return scaled((double)n, 1000, suffixes, out);
}

static const char *bytes(uint64_t n, char out[32])
{
    static const char *const suffixes[] = {" bytes", " kB", " MB", " GB", " TB", NULL};
    return scaled((double)n, 1000, suffixes, out);
}

/* Everything that is known, as one object. */
static int print_json(const pm_info *info)
{
    json_t *object = json_pack("{s:b, s:s, s:s, s:s, s:s, s:s, s:s}", "supported", (int)info->supported, "verdict",
                               info->verdict, "model_type", info->model_type, "family", info->family, "formats",
                               info->formats, "device", info->device, "notes", info->notes);
    json_t *numbers =
        json_pack("{s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "layers", info->layers, "vocab", info->vocab, "ctx",
                  info->ctx, "parameters", (json_int_t)info->parameters, "active", (json_int_t)info->active,
                  "weight_bytes", (json_int_t)info->weight_bytes, "cache_bytes", (json_int_t)info->cache_bytes,
                  "row_bytes", (json_int_t)info->row_bytes, "state_bytes", (json_int_t)info->state_bytes);
    bool whole = object && numbers && json_object_update(object, numbers) == 0;
    char *text = whole ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    json_decref(numbers);
    if (!text)
        return pm_cli_fail("out of memory");
    puts(text);
    free(text);
    return info->supported ? PM_EXIT_OK : PM_EXIT_FAILED;
}

int pm_cmd_inspect(const pm_args *args)
{
    char bundled[4096];
    const char *dir;
    int code = pm_find_model(args->n_words ? args->words[0] : NULL, bundled, sizeof(bundled), &dir);
    if (code != PM_EXIT_OK)
        return code;
    pm_info info;
    pm_error err;
    pm_engine_options options = pm_engine_flags(args);
    if (pm_inspect(dir, &options, &info, &err) != PM_OK)
        return pm_cli_fail("%s", err.message);
    if (args->value[PM_OPT_JSON].given)
        return print_json(&info);

    char a[32], b[32];
    printf("model_type    %s\n", *info.model_type ? info.model_type : "none");
    printf("family        %s\n", *info.family ? info.family : "none");
    printf("verdict       %s\n", info.verdict);
    if (!info.supported)
        return PM_EXIT_FAILED;
    printf("parameters    %s total, %s active per token\n", count(info.parameters, a), count(info.active, b));
    printf("layers        %d\n", info.layers);
    printf("vocabulary    %d\n", info.vocab);
    printf("context       %d tokens\n", info.ctx);
    printf("formats       %s\n", info.formats);
    printf("weights       %s\n", bytes(info.weight_bytes, a));
    printf("cache         %s for %d tokens", bytes(info.cache_bytes, a), info.ctx);
    printf(": %s per token", bytes(info.row_bytes, a));
    printf(" and %s per session\n", bytes(info.state_bytes, b));
    if (*info.notes)
        printf("notes         %s\n", info.notes);
    return PM_EXIT_OK;
}
