#include "engine/defaults.h"
#include "files/config.h"

#include <stdio.h>
#include <string.h>

/* The number called `name`; `value` stays when it is absent or null. */
static int read_number(const json_t *settings, const char *name, double min, double max, double *value, pm_error *err)
{
    const json_t *field = json_object_get(settings, name);
    double number;
    if (!field || json_is_null(field))
        return PM_OK;
    if (!pm_json_number(field, &number) || !(number >= min && number <= max))
        return pm_fail(err, PM_ERR_FORMAT, "generation_config.json: %s is not a number between %g and %g", name, min,
                       max);
    *value = number;
    return PM_OK;
}

/* The sampling. What the file leaves out is as in Hugging Face: temperature 1, top-k 50. An answer is greedy
 * unless the file says do_sample, or leaves that out and gives a temperature. */
static int read_sampling(const json_t *settings, pm_sampling *out, pm_error *err)
{
    double temperature = 1, top_k = 50, top_p = 1, min_p = 0, repetition = 1;
    const json_t *sample = json_object_get(settings, "do_sample"), *given = json_object_get(settings, "temperature");
    if (sample && !json_is_boolean(sample) && !json_is_null(sample))
        return pm_fail(err, PM_ERR_FORMAT, "generation_config.json: do_sample is neither true nor false");
    int status = read_number(settings, "temperature", 0, 1e6, &temperature, err);
    if (status == PM_OK)
        status = read_number(settings, "top_k", 0, INT32_MAX, &top_k, err);
    if (status == PM_OK)
        status = read_number(settings, "top_p", 0, 1, &top_p, err);
    if (status == PM_OK)
        status = read_number(settings, "min_p", 0, 1, &min_p, err);
    if (status == PM_OK)
        status = read_number(settings, "repetition_penalty", 0.01, 100, &repetition, err);
    if (status != PM_OK)
        return status;
    bool greedy = json_is_boolean(sample) ? json_is_false(sample) : !json_is_number(given);
    *out = (pm_sampling){.temperature = greedy ? 0 : (float)temperature,
                         .top_k = (int)top_k,
                         .top_p = top_p > 0 ? (float)top_p : 1,
                         .min_p = (float)min_p,
                         .repetition_penalty = (float)repetition,
                         .xtc_threshold = 0.1f};
    return PM_OK;
}

/* Settings of Hugging Face's GenerationConfig that change which tokens are chosen, with the number that means off;
 * null, false and an empty list or object are off too. Those that only matter to beam search are left to num_beams. */
static const struct unapplied {
    const char *name;
    double off;
} unapplied[] = {
    {"num_beams", 1},
    {"num_return_sequences", 1},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"top_h", 0},
    {"penalty_alpha", 0},
    {"no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"encoder_no_repeat_ngram_size", 0},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"max_time", 0},
    {"guidance_scale", 1},
    {"bad_words_ids", 0},
    {"force_words_ids", 0},
    {"constraints", 0},
    {"sequence_bias", 0},
    {"suppress_tokens", 0},
    {"begin_suppress_tokens", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"exponential_decay_length_penalty", 0},
    {"stop_strings", 0},
    {"dola_layers", 0},
    {"watermarking_config", 0},
};

/* Whether a setting is there and not off. */
static bool is_on(const json_t *value, double off)
{
    if (json_is_number(value))
        return json_number_value(value) != off;
    if (json_is_array(value))
        return json_array_size(value) > 0;
    if (json_is_object(value))
        return json_object_size(value) > 0;
    return json_is_true(value) || json_is_string(value);
}

/* Lists what is set and not applied. */
static void list_unapplied(const json_t *settings, char *out, size_t size)
{
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; i < PM_COUNT(unapplied) && n < size; i++) {
        const json_t *value = json_object_get(settings, unapplied[i].name);
        if (!is_on(value, unapplied[i].off))
            continue;
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", unapplied[i].name);
        if (json_is_number(value) && n < size)
            n += (size_t)snprintf(out + n, size - n, " = %g", json_number_value(value));
    }
}

int pm_defaults_read(const json_t *settings, pm_defaults *out, pm_error *err)
{
    pm_defaults defaults;
    double max_tokens = 0;
    int status = read_sampling(settings, &defaults.sampling, err);
    if (status == PM_OK)
        status = read_number(settings, "max_new_tokens", 1, INT32_MAX, &max_tokens, err);
    if (status != PM_OK)
        return status;
    defaults.max_tokens = (size_t)max_tokens;
    list_unapplied(settings, defaults.unapplied, sizeof(defaults.unapplied));
    *out = defaults;
    return PM_OK;
}
