/* config.json, generation_config.json, tokenizer_config.json: JSON objects read by field name.
 *
 * null counts as absent everywhere. Bare NaN, Infinity and -Infinity, which Python writes, are accepted. The text
 * model's fields are looked up in `text_config` first, then at the top level. */
#ifndef PM_CONFIG_H
#define PM_CONFIG_H

#include "base/base.h"

#include <jansson.h>

typedef struct pm_config {
    char *path;   /* of config.json, for messages */
    json_t *root; /* the whole object */
    json_t *text; /* borrowed: text_config, or root */
} pm_config;

/* Parses a JSON file of at most `max` bytes (0: 64 MiB) whose top level is an object; depth, duplicate keys and UTF-8
 * are checked. The error names the file and the line. */
int pm_json_file(const char *path, size_t max, json_t **out, pm_error *err);
/* The same for text that came from a caller; `what` names it in messages ("messages"). Any top-level value. */
int pm_json_text(const char *what, const char *text, size_t len, json_t **out, pm_error *err);

/* json_loadb, and when it fails whether that was for want of memory and not because of the text. */
json_t *pm_json_load(const char *text, size_t len, size_t flags, json_error_t *json_err, bool *no_memory);

int pm_config_open(pm_config **out, const char *dir, pm_error *err);
void pm_config_close(pm_config *config);

/* The field by dotted path, "rope_parameters.rope_theta"; NULL when absent or null. What differs between the levels on
 * purpose (model_type) is read from `root` itself. */
const json_t *pm_config_get(const pm_config *config, const char *field);

/* Of names of one field, separated by '|', the first that the config has; the first of all where it has none. Two that
 * differ in value are an error that names both. */
enum { PM_FIELD_MAX = 64 };
int pm_config_alias(const pm_config *config, const char *names, char out[PM_FIELD_MAX], pm_error *err);

/* Typed reads with bounds. A required field that is absent, a wrong type, and a value outside [min, max] are errors
 * that name file and field. pm_config_*_or give `absent` when the field is not there. Whole floats (4.0) are accepted
 * as integers. */
int pm_config_int(const pm_config *config, const char *field, int64_t min, int64_t max, int *out, pm_error *err);
int pm_config_int_or(const pm_config *config, const char *field, int64_t min, int64_t max, int absent, int *out,
                     pm_error *err);
int pm_config_float(const pm_config *config, const char *field, double min, double max, float *out, pm_error *err);
int pm_config_float_or(const pm_config *config, const char *field, double min, double max, float absent, float *out,
                       pm_error *err);
int pm_config_bool_or(const pm_config *config, const char *field, bool absent, bool *out, pm_error *err);
int pm_config_string(const pm_config *config, const char *field, const char **out, pm_error *err);

/* A JSON number as double; also the strings "Infinity", "-Infinity", "NaN", which stand for bare ones, and
 * transformers'
 * {"__float__": "Infinity"}. False otherwise. */
bool pm_json_number(const json_t *value, double *out);

/* ---- quantisation ---- */

typedef enum pm_mode {
    PM_MODE_NONE,
    PM_MODE_AFFINE,
    PM_MODE_MXFP4,
    PM_MODE_MXFP8,
    PM_MODE_NVFP4,
    PM_MODE_FP8,
    PM_MODE_PACKED /* compressed-tensors: symmetric integers */
} pm_mode;

typedef struct pm_quant {
    pm_mode mode;
    int bits, group_size;
    int block[2]; /* FP8: rows and columns that share a scale */
} pm_quant;

/* What `quantization` (or `quantization_config`, when only that is there) says of a module, by the name in the file and
 * the name after renaming, either of which may have an override: an object with bits, group_size, mode, or false
 * (unquantised), or true (the global values). An object stands alone: what it omits is its mode's default, and without
 * a mode it is affine. PM_MODE_NONE when the config has no quantisation. An unknown mode, an impossible bits or group
 * size and a quant_method (another library's layout) other than fp8 with weight_block_size and compressed-tensors with
 * symmetric integers in groups are errors. */
int pm_config_quant(const pm_config *config, const char *stored_name, const char *name, pm_quant *out, pm_error *err);

/* ---- the model's smaller files ---- */

/* Ids that end an answer: the union of eos_token_id (number or list) in config.json (both levels) and
 * generation_config.json. The tokenizer's eos is added by the caller. *ids is malloc'ed, sorted, without duplicates. */
int pm_config_stops(const pm_config *config, const json_t *generation_config, pm_token **ids, size_t *n, pm_error *err);

#endif
