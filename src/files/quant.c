/* config.json: how each module is quantised. The layout and its defaults are those of mlx-lm's `load_model` and of
 * `mlx.nn.quantize`. */
#include <stdio.h>
#include <string.h>

#include "files/config.h"

/* The modes, what a missing group size or number of bits means, and what they may be (0: end of the list). */
static const struct {
    const char *name;
    pm_quant defaults;
    int bits[8], groups[4];
} modes[] = {
    {"affine", {PM_MODE_AFFINE, 4, 64, {0}}, {2, 3, 4, 5, 6, 8}, {32, 64, 128}},
    {"mxfp4", {PM_MODE_MXFP4, 4, 32, {0}}, {4}, {32}},
    {"mxfp8", {PM_MODE_MXFP8, 8, 32, {0}}, {8}, {32}},
    {"nvfp4", {PM_MODE_NVFP4, 4, 16, {0}}, {4}, {16}},
};

/* Where an object of settings was found, for messages: `override` is the module's name, or empty. */
typedef struct place {
    const char *file, *field, *override;
} place;

static int fail_setting(const place *at, pm_status code, const char *key, const char *why, pm_error *err)
{
    return pm_fail(err, code, "%s: %s of %s%s%s %s", at->file, key, at->field, *at->override ? ", module " : "",
                   at->override, why);
}

/* Replaces *value by the setting `key`, if there is one; it must be in the list `allowed`. */
static int read_setting(const json_t *object, const char *key, const int *allowed, const place *at, int *value,
                        pm_error *err)
{
    const json_t *setting = json_object_get(object, key);
    json_int_t given = *value;
    if (setting && !json_is_null(setting)) {
        double real;
        if (!json_is_number(setting) || !pm_json_number(setting, &real) || !(real >= 0 && real <= 65536) ||
            real != (double)(int)real)
            return fail_setting(at, PM_ERR_FORMAT, key, "is not a small whole number", err);
        given = (json_int_t)real;
    }
    while (*allowed && *allowed != given)
        allowed++;
    if (!*allowed)
        return fail_setting(at, PM_ERR_UNSUPPORTED, key, "is not one that its mode allows", err);
    *value = (int)given;
    return PM_OK;
}

/* Reads one object of settings. Each object stands alone: what it leaves out has the mode's default and not the global
 * value, and a missing mode is affine. */
static int read_settings(const json_t *object, const place *at, pm_quant *out, pm_error *err)
{
    const json_t *mode = json_object_get(object, "mode");
    size_t k = 0;
    if (mode && !json_is_null(mode)) {
        const char *name = json_string_value(mode);
        if (!name)
            return fail_setting(at, PM_ERR_FORMAT, "mode", "is not a string", err);
        while (k < PM_COUNT(modes) && strcmp(name, modes[k].name) != 0)
            k++;
        if (k == PM_COUNT(modes))
            return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: mode '%s' of %s%s%s is not supported", at->file, name,
                           at->field, *at->override ? ", module " : "", at->override);
    }
    if (json_is_true(json_object_get(object, "quantize_input")))
        return fail_setting(at, PM_ERR_UNSUPPORTED, "quantize_input", "is not supported", err);
    pm_quant quant = modes[k].defaults;
    int status = read_setting(object, "bits", modes[k].bits, at, &quant.bits, err);
    if (status == PM_OK)
        status = read_setting(object, "group_size", modes[k].groups, at, &quant.group_size, err);
    if (status == PM_OK)
        *out = quant;
    return status;
}

/* Hugging Face's fp8: e4m3 weights with one scale for each block of weight_block_size, or without it for each matrix.
 */
static int read_fp8(const json_t *object, const place *at, pm_quant *out, pm_error *err)
{
    const json_t *size = json_object_get(object, "weight_block_size");
    const char *fmt = json_string_value(json_object_get(object, "fmt"));
    pm_quant quant = {.mode = PM_MODE_FP8, .bits = 8};
    if (fmt && strcmp(fmt, "e4m3") != 0)
        return fail_setting(at, PM_ERR_UNSUPPORTED, "fmt", "is not e4m3", err);
    for (size_t i = 0; size && !json_is_null(size) && i < 2; i++) {
        const json_t *item = json_array_get(size, i);
        if (json_array_size(size) != 2 || !json_is_integer(item) || json_integer_value(item) < 1 ||
            json_integer_value(item) > 1 << 20)
            return fail_setting(at, PM_ERR_FORMAT, "weight_block_size", "is not two positive whole numbers", err);
        quant.block[i] = (int)json_integer_value(item);
    }
    *out = quant;
    return PM_OK;
}

/* True when the setting is absent, null, or `allowed` (a string, or true or false as words). */
static bool is_setting(const json_t *value, const char *allowed)
{
    if (!value || json_is_null(value))
        return true;
    if (json_is_boolean(value))
        return strcmp(json_is_true(value) ? "true" : "false", allowed) == 0;
    return json_is_string(value) && strcmp(json_string_value(value), allowed) == 0;
}

/* compressed-tensors' pack-quantized, as Kimi K2 Thinking has it: integers of bits and group as MLX packs them, but
 * signed, with 2^(bits - 1) added. Which modules are packed the tensors themselves say, and `targets` and `ignore` are
 * not looked at. References: compressed_tensors, compressors/pack_quantized and quantization/quant_args.py; mlx-lm,
 * models/mistral4.py, sanitize. */
static int read_packed(const json_t *object, const place *at, pm_quant *out, pm_error *err)
{
    static const struct {
        const char *part, *key, *allowed; /* part: of the group */
    } settings[] = {
        {"", "format", "pack-quantized"}, {"", "input_activations", "false"}, {"", "output_activations", "false"},
        {"weights", "type", "int"},       {"weights", "symmetric", "true"},   {"weights", "strategy", "group"},
        {"weights", "dynamic", "false"},  {"weights", "actorder", "false"},   {"weights", "block_structure", "false"},
    };
    static const int bits[] = {4, 8, 0}, groups[] = {32, 64, 128, 0};
    const json_t *format = json_object_get(object, "format");
    json_t *list = json_object_get(object, "config_groups");
    char field[160];
    if (!json_is_string(format) || !is_setting(format, "pack-quantized"))
        return pm_fail(err, PM_ERR_UNSUPPORTED,
                       "%s: format '%s' of %s is not supported; of compressed-tensors only pack-quantized is", at->file,
                       json_is_string(format) ? json_string_value(format) : "?", at->field);
    if (!is_setting(json_object_get(object, "kv_cache_scheme"), "false"))
        return fail_setting(at, PM_ERR_UNSUPPORTED, "kv_cache_scheme", "is not supported", err);
    if (json_object_size(json_object_get(object, "transform_config")))
        return fail_setting(at, PM_ERR_UNSUPPORTED, "transform_config", "is not supported", err);
    const json_t *sparse = json_object_get(json_object_get(object, "sparsity_config"), "format");
    if (!is_setting(sparse, "dense"))
        return fail_setting(at, PM_ERR_UNSUPPORTED, "sparsity_config.format", "is not dense", err);
    if (json_object_size(list) != 1)
        return fail_setting(at, PM_ERR_UNSUPPORTED, "config_groups", "is not one group", err);
    void *only = json_object_iter(list);
    const json_t *group = json_object_iter_value(only), *weights = json_object_get(group, "weights");
    for (size_t i = 0; i < PM_COUNT(settings); i++) {
        const char *part = settings[i].part;
        if (is_setting(json_object_get(*part ? weights : group, settings[i].key), settings[i].allowed))
            continue;
        snprintf(field, sizeof(field), "config_groups.%.64s.%s%s%s", json_object_iter_key(only), part, *part ? "." : "",
                 settings[i].key);
        return fail_setting(at, PM_ERR_UNSUPPORTED, field, "has a value that is not supported", err);
    }
    snprintf(field, sizeof(field), "%.32s.config_groups.%.64s.weights", at->field, json_object_iter_key(only));
    const place inside = {at->file, field, ""};
    pm_quant quant = {.mode = PM_MODE_PACKED};
    int status = read_setting(weights, "num_bits", bits, &inside, &quant.bits, err);
    if (status == PM_OK)
        status = read_setting(weights, "group_size", groups, &inside, &quant.group_size, err);
    if (status == PM_OK)
        *out = quant;
    return status;
}

/* The global settings. An object without bits or group size is not MLX's: name whose it is, if it says. */
static int read_global(const json_t *object, const place *at, pm_quant *out, pm_error *err)
{
    if (!json_is_object(object))
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s is not an object", at->file, at->field);
    const json_t *method = json_object_get(object, "quant_method");
    if (json_is_string(method) && strcmp(json_string_value(method), "fp8") == 0)
        return read_fp8(object, at, out, err);
    if (json_is_string(method) && strcmp(json_string_value(method), "compressed-tensors") == 0)
        return read_packed(object, at, out, err);
    const char *algorithm = json_string_value(json_object_get(object, "quant_algo")); /* as modelopt says */
    if (method && !json_is_null(method))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: quant_method '%s'%s%s of %s is not supported", at->file,
                       json_is_string(method) ? json_string_value(method) : "?", algorithm ? " with quant_algo " : "",
                       algorithm ? algorithm : "", at->field);
    static const char *const required[] = {"bits", "group_size"};
    for (size_t i = 0; i < PM_COUNT(required); i++) {
        const json_t *setting = json_object_get(object, required[i]);
        if (!setting || json_is_null(setting))
            return pm_fail(err, PM_ERR_FORMAT, "%s: %s has no %s", at->file, at->field, required[i]);
    }
    return read_settings(object, at, out, err);
}

int pm_config_quant(const pm_config *config, const char *stored_name, const char *name, pm_quant *out, pm_error *err)
{
    place at = {config->path, "quantization", ""};
    const json_t *object = pm_config_get(config, at.field);
    if (!object) {
        at.field = "quantization_config";
        object = pm_config_get(config, at.field);
    }
    if (!object) {
        *out = (pm_quant){.mode = PM_MODE_NONE};
        return PM_OK;
    }
    pm_quant global;
    int status = read_global(object, &at, &global, err);
    if (status != PM_OK)
        return status;

    at.override = stored_name;
    const json_t *entry = json_object_get(object, at.override);
    if (!entry || json_is_null(entry)) {
        at.override = name;
        entry = json_object_get(object, at.override);
    }
    if (!entry || json_is_null(entry) || json_is_true(entry))
        *out = global;
    else if (json_is_false(entry))
        *out = (pm_quant){.mode = PM_MODE_NONE};
    else if (json_is_object(entry))
        return read_settings(entry, &at, out, err);
    else
        return pm_fail(err, PM_ERR_FORMAT, "%s: the entry of %s in %s is neither an object nor true or false",
                       config->path, at.override, at.field);
    return PM_OK;
}
