/* Mamba-2 (Dao and Gu 2024), a mixer of pre-norm decoders, with the config fields of Nemotron-H. */
#include "model/decoder.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#define TOP(member) offsetof(pm_decoder, member)
#define IN(member)  offsetof(pm_decoder_layer, mamba.member)
#define DIM(i)      (offsetof(pm_decoder, dims) + (i) * sizeof(int))

/* clang-format off */
const pm_expect pm_mamba_table[] = {
    {"mamba.in_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_MAMBA_IN, IN(in_proj.bias), PM_MAMBA_BIAS, 0},
    {"mamba.out_proj.bias", PM_EXPECT_BIAS, PM_D_ONE, PM_D_HIDDEN, IN(out_proj.bias), PM_MAMBA_BIAS, 0},
    {"mamba.conv1d.bias", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_MAMBA_CHANNELS, IN(conv1d_bias), PM_MAMBA_CONV_BIAS, 0},
    {"mamba.in_proj", PM_EXPECT_MATRIX, PM_D_MAMBA_IN, PM_D_HIDDEN, IN(in_proj), PM_MAMBA, 0},
    {"mamba.conv1d.weight", PM_EXPECT_CONV, PM_D_MAMBA_CHANNELS, PM_D_KERNEL, IN(conv1d), PM_MAMBA, 0},
    {"mamba.A_log", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_MAMBA_HEADS, IN(A_log), PM_MAMBA, 0},
    {"mamba.D", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_MAMBA_HEADS, IN(D), PM_MAMBA, 0},
    {"mamba.dt_bias", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_MAMBA_HEADS, IN(dt_bias), PM_MAMBA, 0},
    {"mamba.norm.weight", PM_EXPECT_VECTOR, PM_D_ONE, PM_D_INNER, IN(norm), PM_MAMBA, 0},
    {"mamba.out_proj", PM_EXPECT_MATRIX, PM_D_HIDDEN, PM_D_INNER, IN(out_proj), PM_MAMBA, 0},
};
/* clang-format on */
const size_t pm_mamba_rows = PM_COUNT(pm_mamba_table);

/* The bounds of time steps: time_step_limit (in old configs mamba_dt_limit), or none; only the upper one may be
 * infinite. time_step_min and its kind are about training. */
static int read_limit(const pm_config *config, pm_decoder *d, pm_error *err)
{
    char field[PM_FIELD_MAX], *text;
    double low = 0, high = (double)INFINITY;
    int status = pm_config_alias(config, "time_step_limit|mamba_dt_limit", field, err);
    if (status != PM_OK)
        return status;
    const json_t *limit = pm_config_get(config, field);
    bool right = !limit || (json_array_size(limit) == 2 && pm_json_number(json_array_get(limit, 0), &low) &&
                            pm_json_number(json_array_get(limit, 1), &high) && low >= 0 && low <= high &&
                            low <= (double)FLT_MAX && (high <= (double)FLT_MAX || isinf(high)));
    if (!right) {
        text = json_dumps(limit, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        status = pm_fail(err, PM_ERR_FORMAT,
                         "%s: %s is %.80s, not two numbers (f32), the first finite, not negative and not above the "
                         "second",
                         config->path, field, text ? text : "something else");
        free(text);
        return status;
    }
    d->dt_min = (float)low;
    d->dt_max = (float)high;
    return PM_OK;
}

int pm_mamba_config(pm_model *model, pm_decoder *d, pm_error *err)
{
    enum { MOST = 1 << 12 };
    static const struct {
        const char *names;
        size_t out;
        int max, absent; /* absent 0: required */
    } fields[] = {
        {"mamba_num_heads", DIM(PM_D_MAMBA_HEADS), MOST, 0},
        {"mamba_head_dim", TOP(mamba_head_dim), MOST, 0},
        {"ssm_state_size", TOP(mamba_state), MOST, 0},
        {"n_groups|mamba_n_groups", TOP(mamba_groups), MOST, 0},
        {"conv_kernel|mamba_d_conv", DIM(PM_D_KERNEL), INT_MAX, 4}, /* PM_CONV_WIDTHS */
    };
    const pm_config *config = model->config;
    int status = PM_OK, *dims = d->dims;
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(fields); i++) {
        int *out = (int *)((char *)d + fields[i].out), max = fields[i].max, absent = fields[i].absent;
        char field[PM_FIELD_MAX];
        status = pm_config_alias(config, fields[i].names, field, err);
        if (status == PM_OK)
            status = absent ? pm_config_int_or(config, field, 1, max, absent, out, err)
                            : pm_config_int(config, field, 1, max, out, err);
    }
    if (status == PM_OK)
        status = read_limit(config, d, err);
    if (status != PM_OK)
        return status;
    if (dims[PM_D_MAMBA_HEADS] % d->mamba_groups)
        return pm_fail(err, PM_ERR_FORMAT, "%s: mamba_num_heads %d is not a multiple of n_groups %d", config->path,
                       dims[PM_D_MAMBA_HEADS], d->mamba_groups);
    dims[PM_D_INNER] = dims[PM_D_MAMBA_HEADS] * d->mamba_head_dim;
    dims[PM_D_MAMBA_CHANNELS] = dims[PM_D_INNER] + 2 * d->mamba_groups * d->mamba_state;
    dims[PM_D_MAMBA_IN] = dims[PM_D_INNER] + dims[PM_D_MAMBA_CHANNELS] + dims[PM_D_MAMBA_HEADS];
    return PM_OK;
}

void pm_mamba_plan(pm_decoder_layer *l, const pm_decoder *d, pm_cache_spec *cache, pm_state_spec *states)
{
    l->states = cache->n_states;
    cache->n_states += 2;
    states[l->states].count = (int64_t)(d->dims[PM_D_KERNEL] - 1) * d->dims[PM_D_MAMBA_CHANNELS];
    states[l->states + 1].count = (int64_t)d->dims[PM_D_INNER] * d->mamba_state;
}

/* x += out_proj(mamba2(in_proj of input_layernorm(x))) */
int pm_mamba_step(pm_model *model, const pm_batch *batch, const pm_decoder_layer *l, pm_error *err)
{
    pm_decoder *d = model->impl;
    const pm_backend_ops *op = model->backend->ops;
    const pm_weight *const in[] = {&l->mamba.in_proj};
    pm_mamba2_args scan = {.projected = d->projected,
                           .conv = l->mamba.conv1d,
                           .conv_bias = l->mamba.conv1d_bias,
                           .A_log = l->mamba.A_log,
                           .D = l->mamba.D,
                           .dt_bias = l->mamba.dt_bias,
                           .norm = l->mamba.norm,
                           .eps = d->eps,
                           .dt_min = d->dt_min,
                           .dt_max = d->dt_max,
                           .heads = d->dims[PM_D_MAMBA_HEADS],
                           .head_dim = d->mamba_head_dim,
                           .groups = d->mamba_groups,
                           .state_size = d->mamba_state,
                           .kernel = d->dims[PM_D_KERNEL],
                           .conv_state = l->states,
                           .ssm_state = l->states + 1,
                           .out = d->scanned};
    int status = pm_decoder_in(model, batch, l, 1, in, &d->projected, err);
    if (status == PM_OK)
        status = op->mamba2(model->backend, batch, &scan, err);
    return status ? status : pm_decoder_out(model, batch, &l->mamba.out_proj, d->scanned, err);
}
