/* Rotary frequencies: the default ones and the scalings of long-context checkpoints, as transformers'
 * modeling_rope_utils.py computes them (tensors there are f32, so the powers are rounded to f32 here too). */
#include "model/family.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where the frequencies come from. */
typedef struct rope_source {
    const pm_config *config;
    const pm_rope_place *place;
    double theta;
    int rotary; /* elements that turn */
} rope_source;

/* A field may be in rope_parameters (new files), in rope_scaling, or at the top (old files). */
static const pm_rope_place anywhere = {.objects = {"rope_parameters.", "rope_scaling.", ""}};

/* theta^(2i / rotary): the positions in which pair i turns by one radian. */
static float wavelength(const rope_source *source, int i)
{
    return (float)pow(source->theta, (double)((float)(2 * i) / (float)source->rotary));
}

/* The field from wherever it is; *out stays when it is absent. `required` or not a number above `above`: an error. */
static int read_number(const rope_source *source, const char *name, bool required, double above, double *out,
                       pm_error *err)
{
    const pm_config *config = source->config;
    const json_t *value = NULL;
    char field[128] = "";
    double number;
    for (size_t i = 0; !value && i < PM_COUNT(source->place->objects) && source->place->objects[i]; i++) {
        snprintf(field, sizeof(field), "%s%s", source->place->objects[i], name);
        value = pm_config_get(config, field);
    }
    if (!value)
        return required ? pm_fail(err, PM_ERR_FORMAT, "%s: %s is missing", config->path, name) : PM_OK;
    if (!pm_json_number(value, &number) || !(number > above) || isinf(number))
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s must be a number %s%g", config->path, field,
                       above < 0 ? "not below " : "above ", fmax(above, 0.0));
    *out = number;
    return PM_OK;
}

static int scale_none(const rope_source *source, pm_rope *rope, float *inv_freq, pm_error *err)
{
    (void)source, (void)rope, (void)inv_freq, (void)err;
    return PM_OK;
}

/* Positions are divided by the factor. */
static int scale_linear(const rope_source *source, pm_rope *rope, float *inv_freq, pm_error *err)
{
    double factor = 1.0;
    int status = read_number(source, "factor", true, 0.0, &factor, err);
    for (int i = 0; status == PM_OK && i < rope->pairs; i++)
        inv_freq[i] /= (float)factor;
    return status;
}

/* Llama 3.1: long wavelengths are divided by the factor, short ones kept, those between blended. */
static int scale_llama3(const rope_source *source, pm_rope *rope, float *inv_freq, pm_error *err)
{
    double factor = 1, low = 1, high = 4, context = 8192;
    int status = read_number(source, "factor", true, 0.0, &factor, err);
    if (status == PM_OK)
        status = read_number(source, "low_freq_factor", true, 0.0, &low, err);
    if (status == PM_OK)
        status = read_number(source, "high_freq_factor", true, low, &high, err);
    if (status == PM_OK)
        status = read_number(source, "original_max_position_embeddings", true, 0.0, &context, err);
    if (status != PM_OK)
        return status;
    for (int i = 0; i < rope->pairs; i++) {
        float f = inv_freq[i], turn = (float)(2.0 * M_PI) / f;
        float smooth = ((float)context / turn - (float)low) / (float)(high - low);
        if (turn > (float)(context / low))
            inv_freq[i] = f / (float)factor;
        else if (turn >= (float)(context / high))
            inv_freq[i] = (1.0f - smooth) * f / (float)factor + smooth * f;
    }
    return PM_OK;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The element at which `rotations` turns fit in the original context (Peng et al. 2023, YaRN, section 3.2). */
static double yarn_dim(const rope_source *source, double rotations, double context)
{
    return source->rotary * log(context / (rotations * 2.0 * M_PI)) / (2.0 * log(source->theta));
}

/* True when the field of the object with this prefix is there and null. */
static bool says_null(const pm_config *config, const char *prefix, const char *name)
{
    char field[128];
    snprintf(field, sizeof(field), "%.*s", (int)(strlen(prefix) - 1), prefix); /* without the dot */
    return json_is_null(json_object_get(pm_config_get(config, field), name));
}

/* YaRN: frequencies are interpolated below the correction range, kept above it, blended in it; sine and cosine are
 * scaled. */
static int scale_yarn(const rope_source *source, pm_rope *rope, float *inv_freq, pm_error *err)
{
    const pm_config *config = source->config;
    double factor = 1, context = 0, attention = 0, mscale = 0, mscale_all = 0, fast = 32, slow = 1;
    const struct {
        const char *name;
        bool required;
        double above, *out;
    } fields[] = {
        {"factor", true, 0.0, &factor},
        {"original_max_position_embeddings", true, 0.0, &context},
        {"attention_factor", false, 0.0, &attention},
        {"mscale", false, -DBL_MIN, &mscale},
        {"mscale_all_dim", false, -DBL_MIN, &mscale_all},
        {"beta_fast", false, 0.0, &fast},
        {"beta_slow", false, 0.0, &slow},
    };
    bool truncate = true;
    if (source->theta == 1)
        return pm_fail(err, PM_ERR_FORMAT, "%s: yarn with a rope_theta of 1 has no range to correct", config->path);
    for (size_t i = 0; i < PM_COUNT(fields); i++) {
        int status = read_number(source, fields[i].name, fields[i].required, fields[i].above, fields[i].out, err);
        if (status != PM_OK)
            return status;
    }
    for (size_t i = PM_COUNT(source->place->objects); i-- > 0;) {
        const char *object = source->place->objects[i];
        char field[128];
        snprintf(field, sizeof(field), "%struncate", object ? object : "");
        int status = object && *object ? pm_config_bool_or(config, field, truncate, &truncate, err) : PM_OK;
        if (status != PM_OK)
            return status;
        if (object && *object && says_null(config, object, "truncate"))
            truncate = false; /* Python's None, which the reference tests for truth */
    }
    if (attention == 0)
        attention = source->place->attention;
    if (attention == 0)
        attention = mscale > 0 && mscale_all > 0 ? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
                                                 : yarn_mscale(factor, 1.0);
    double low = yarn_dim(source, fast, context), high = yarn_dim(source, slow, context);
    low = fmax(truncate ? floor(low) : low, 0.0);
    high = fmin(truncate ? ceil(high) : high, source->rotary - 1.0);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < rope->pairs; i++) {
        float ramp = fminf(fmaxf(((float)i - (float)low) / (float)(high - low), 0.0f), 1.0f), keep = 1.0f - ramp;
        inv_freq[i] = 1.0f / ((float)factor * wavelength(source, i)) * (1.0f - keep) + inv_freq[i] * keep;
    }
    rope->scale = (float)attention;
    return PM_OK;
}

/* Names of rope_type; which of them a family computes is its gate's business. */
static const struct {
    const char *name;
    int (*scale)(const rope_source *source, pm_rope *rope, float *inv_freq, pm_error *err);
} types[] = {{"default", scale_none}, {"linear", scale_linear}, {"llama3", scale_llama3}, {"yarn", scale_yarn}};

/* The objects of the place are objects, of one scaling for all of its layers; transformers can also write one for each
 * entry of layer_types. */
static int check_flat(const pm_config *config, const pm_rope_place *place, pm_error *err)
{
    for (size_t i = 0; i < PM_COUNT(place->objects) && place->objects[i]; i++) {
        char field[64];
        const char *prefix = place->objects[i], *name;
        snprintf(field, sizeof(field), "%.*s", (int)(strlen(prefix) - (*prefix != 0)), prefix); /* without the dot */
        const json_t *object = *field ? pm_config_get(config, field) : NULL, *value;
        if (object && !json_is_object(object))
            return pm_fail(err, PM_ERR_FORMAT, "%s: %s is not an object", config->path, field);
        json_object_foreach((json_t *)object, name, value)
        {
            if (json_is_object(value))
                return pm_fail(err, PM_ERR_UNSUPPORTED,
                               "%s: %s.%s, a rope of its own for some layers, is not supported", config->path, field,
                               name);
        }
    }
    return PM_OK;
}

/* Refuses what contradicts itself: transformers, mlx-lm and vLLM differ in which of the values counts. */
static int check_agreement(const pm_config *config, pm_error *err)
{
    static const char field[] = "original_max_position_embeddings";
    const json_t *parameters = pm_config_get(config, "rope_parameters"),
                 *scaling = pm_config_get(config, "rope_scaling");
    const json_t *value;
    const char *name;
    json_object_foreach((json_t *)(json_object_size(parameters) ? scaling : NULL), name, value)
    {
        const json_t *same = json_object_get(parameters, name);
        if (!same && strcmp(name, "type") == 0)
            same = json_object_get(parameters, "rope_type");
        if (!json_equal(value, same))
            return pm_fail(err, PM_ERR_FORMAT, "%s: rope_scaling.%s is not what rope_parameters says", config->path,
                           name);
    }
    const json_t *outer = pm_config_get(config, field);
    const json_t *inner = json_object_get(json_object_size(parameters) ? parameters : scaling, field);
    if (json_is_number(inner) && json_is_number(outer) && json_number_value(inner) != json_number_value(outer))
        return pm_fail(err, PM_ERR_FORMAT, "%s: %s is %.9g, but among the rope's parameters %.9g", config->path, field,
                       json_number_value(outer), json_number_value(inner));
    return PM_OK;
}

/* rope_type (old files: type); "default" when there is none. */
static const char *read_type(const rope_source *source)
{
    static const char *const names[] = {"rope_type", "type"};
    char field[128];
    for (size_t i = 0; i < PM_COUNT(source->place->objects) && source->place->objects[i]; i++)
        for (size_t k = 0; *source->place->objects[i] && k < PM_COUNT(names); k++) {
            snprintf(field, sizeof(field), "%s%s", source->place->objects[i], names[k]);
            const json_t *value = pm_config_get(source->config, field);
            if (value)
                return json_is_string(value) ? json_string_value(value) : "?";
        }
    return "default";
}

/* The rest of a source is known. */
static int make_rope(const rope_source *source, pm_arena *arena, pm_rope *out, pm_error *err)
{
    pm_rope rope = {.pairs = source->rotary / 2, .scale = 1.0f};
    float *inv_freq = pm_arena_alloc(arena, (size_t)rope.pairs, sizeof(*inv_freq));
    if (!inv_freq)
        return pm_fail_memory(err);
    for (int i = 0; i < rope.pairs; i++)
        inv_freq[i] = 1.0f / wavelength(source, i);
    rope.inv_freq = inv_freq;
    const char *type = read_type(source);
    for (size_t i = 0; i < PM_COUNT(types); i++)
        if (strcmp(types[i].name, type) == 0) {
            int status = types[i].scale(source, &rope, inv_freq, err);
            if (status == PM_OK)
                *out = rope;
            return status;
        }
    return pm_fail(err, PM_ERR_UNSUPPORTED,
                   "%s: rope_type = %s is not supported; supported: default, linear, llama3, yarn",
                   source->config->path, type);
}

int pm_rope_read_at(const pm_config *config, const pm_rope_place *place, int rotary, pm_arena *arena, pm_rope *out,
                    pm_error *err)
{
    float theta;
    rope_source source = {.config = config, .place = place, .rotary = rotary};
    int status = check_flat(config, place, err);
    if (status == PM_OK && place->objects[0] && place->objects[1])
        status = check_agreement(config, err);
    if (status == PM_OK)
        status = pm_config_float_or(config, place->theta, 1e-3, 1e15, (float)place->base, &theta, err);
    if (status != PM_OK)
        return status;
    source.theta = (double)theta;
    return make_rope(&source, arena, out, err);
}

int pm_rope_read(const pm_config *config, int dims, double partial, double base, pm_arena *arena, pm_rope *out,
                 pm_error *err)
{
    rope_source source = {.config = config, .place = &anywhere, .theta = base > 0 ? base : 10000.0};
    int status = check_flat(config, &anywhere, err);
    if (status == PM_OK)
        status = check_agreement(config, err);
    if (status == PM_OK)
        status = read_number(&source, "rope_theta", false, 0.0, &source.theta, err);
    if (status == PM_OK)
        status = read_number(&source, "partial_rotary_factor", false, 0.0, &partial, err);
    if (status != PM_OK)
        return status;
    source.rotary = partial <= 1.0 ? (int)(dims * partial) : 0;
    if (source.rotary < 2 || source.rotary % 2)
        return pm_fail(err, PM_ERR_FORMAT,
                       "%s: partial_rotary_factor %g of %d elements is not a positive even number of them",
                       config->path, partial, dims);
    return make_rope(&source, arena, out, err);
}

int pm_rope_mscale(const pm_config *config, float *of_rope, float *of_scores, pm_error *err)
{
    const rope_source source = {.config = config, .place = &anywhere};
    double factor = 1, mscale = 1, mscale_all = 0, attention = 0;
    if (strcmp(read_type(&source), "yarn") != 0)
        return PM_OK;
    int status = read_number(&source, "factor", true, 0.0, &factor, err);
    if (status == PM_OK)
        status = read_number(&source, "mscale", false, -DBL_MIN, &mscale, err);
    if (status == PM_OK)
        status = read_number(&source, "mscale_all_dim", false, -DBL_MIN, &mscale_all, err);
    if (status == PM_OK)
        status = read_number(&source, "attention_factor", false, 0.0, &attention, err);
    if (status != PM_OK)
        return status;
    double all = yarn_mscale(factor, mscale_all);
    if (attention == 0)
        *of_rope = (float)(yarn_mscale(factor, mscale) / all);
    *of_scores = (float)(all * all);
    return PM_OK;
}
