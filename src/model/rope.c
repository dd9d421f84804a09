#include "model/family.h"

#include <math.h>

/* Each field may be in rope_parameters (new files), in rope_scaling, or at the top (old files); they say the same. */
static const json_t *rope_field(const pm_config *config, const char *in_parameters, const char *in_scaling,
                                const char *at_top)
{
    const json_t *value = pm_config_get(config, in_parameters);
    if (!value)
        value = pm_config_get(config, in_scaling);
    return value ? value : pm_config_get(config, at_top);
}

int pm_rope_read(const pm_config *config, int dims, pm_arena *arena, pm_rope *out, pm_error *err)
{
    double theta, factor = 1.0;
    const json_t *value = rope_field(config, "rope_parameters.rope_theta", "rope_scaling.rope_theta", "rope_theta");
    if (!value)
        return pm_fail(err, PM_ERR_FORMAT, "%s: rope_theta is missing", config->path);
    if (!pm_json_number(value, &theta) || !(theta > 0.0) || isinf(theta))
        return pm_fail(err, PM_ERR_FORMAT, "%s: rope_theta must be a positive number", config->path);
    value = rope_field(config, "rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor",
                       "partial_rotary_factor");
    if (value && (!pm_json_number(value, &factor) || !(factor > 0.0) || factor > 1.0))
        return pm_fail(err, PM_ERR_FORMAT, "%s: partial_rotary_factor must be in (0, 1]", config->path);
    int rotary = (int)(dims * factor), pairs = rotary / 2;
    if (pairs < 1 || rotary % 2)
        return pm_fail(err, PM_ERR_FORMAT, "%s: partial_rotary_factor %g of %d elements is not a positive even number",
                       config->path, factor, dims);
    float *inv_freq = pm_arena_alloc(arena, (size_t)pairs, sizeof(*inv_freq));
    if (!inv_freq)
        return pm_fail_memory(err);
    for (int i = 0; i < pairs; i++) /* the references round the exponent, the power and its inverse to f32 */
        inv_freq[i] = 1.0f / (float)pow(theta, (double)((float)(2 * i) / (float)rotary));
    *out = (pm_rope){.pairs = pairs, .inv_freq = inv_freq, .scale = 1.0f};
    return PM_OK;
}
