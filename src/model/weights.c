#include "model/weights.h"
#include "model/names.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = PM_NAME_MAX };

int pm_loader_open(pm_loader *loader, const pm_layout *layout, pm_error *err)
{
    loader->layout = layout;
    if (loader->plan)
        return PM_OK;
    size_t count = pm_checkpoint_count(loader->checkpoint);
    loader->names = calloc(count ? count : 1, sizeof(*loader->names));
    loader->used = calloc(count ? count : 1, 1);
    if (!loader->names || !loader->used || count > INT32_MAX)
        return pm_fail_memory(err);
    for (size_t i = 0; i < count; i++) {
        const pm_stored *t = pm_checkpoint_at(loader->checkpoint, i);
        char canonical[NAME_MAX_LEN];
        bool dropped;
        if (strlen(t->name) > NAME_MAX_LEN / 2)
            return pm_fail(err, PM_ERR_FORMAT, "%s: tensor name of %zu bytes is too long",
                           pm_checkpoint_file(loader->checkpoint, t), strlen(t->name));
        pm_name_canonical(layout, t->name, canonical, &dropped);
        loader->used[i] = dropped;
        if (dropped)
            continue;
        char *name = pm_arena_strdup(loader->arena, canonical, strlen(canonical));
        if (!name)
            return pm_fail_memory(err);
        int twin = pm_map_get(&loader->map, name, strlen(name), -1);
        if (twin >= 0)
            return pm_fail(err, PM_ERR_FORMAT, "%s: tensors %s and %s are the same one under two names",
                           pm_checkpoint_file(loader->checkpoint, t),
                           pm_checkpoint_at(loader->checkpoint, (size_t)twin)->name, t->name);
        loader->names[i] = name;
        if (pm_map_set(&loader->map, name, strlen(name), (int)i) != PM_OK)
            return pm_fail_memory(err);
    }
    return PM_OK;
}

void pm_loader_close(pm_loader *loader)
{
    free(loader->names);
    free(loader->used);
    loader->names = NULL;
    loader->used = NULL;
    pm_map_free(&loader->map);
}

const pm_stored *pm_loader_peek(const pm_loader *loader, const char *name)
{
    int i = pm_map_get(&loader->map, name, strlen(name), -1);
    return i < 0 ? NULL : pm_checkpoint_at(loader->checkpoint, (size_t)i);
}

/* The tensor "module.part" ("module" when part is empty), marked as used; NULL when absent. */
static const pm_stored *take(pm_loader *loader, const char *module, const char *part)
{
    char name[NAME_MAX_LEN];
    snprintf(name, sizeof(name), "%s%s%s", module, *part ? "." : "", part);
    int i = pm_map_get(&loader->map, name, strlen(name), -1);
    if (i < 0)
        return NULL;
    loader->used[i] = 1;
    return pm_checkpoint_at(loader->checkpoint, (size_t)i);
}

/* The message has the name that the tensor would have in this checkpoint. */
static int fail_absent(const pm_loader *loader, const char *name, bool matrix, pm_error *err)
{
    char stored[NAME_MAX_LEN];
    pm_name_stored(loader->layout, loader->checkpoint, name, matrix, stored);
    return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s is missing", loader->config->path, stored);
}

static int fail_tensor(const pm_loader *loader, const pm_stored *t, pm_error *err, const char *what)
{
    return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s %s", pm_checkpoint_file(loader->checkpoint, t), t->name, what);
}

int pm_loader_finish(const pm_loader *loader, pm_error *err)
{
    if (loader->plan)
        return PM_OK;
    for (size_t i = 0; i < pm_checkpoint_count(loader->checkpoint); i++) {
        const pm_stored *t = pm_checkpoint_at(loader->checkpoint, i);
        if (loader->used[i])
            continue;
        if (pm_name_ends(t->name, ".scales") || pm_name_ends(t->name, ".biases"))
            return fail_tensor(loader, t, err, "belongs to no quantised weight");
        return fail_tensor(loader, t, err, "is not part of this model");
    }
    return PM_OK;
}

/* ---- dtypes and shapes ---- */

static bool is_float(pm_dtype dtype)
{
    return dtype == PM_F32 || dtype == PM_F16 || dtype == PM_BF16;
}

static int check_shape(const pm_loader *loader, const pm_stored *t, int rank, const int64_t *shape, pm_error *err)
{
    char want[96] = "", have[192] = "";
    bool same = t->rank == rank;
    for (int i = 0; i < rank; i++) {
        same = same && t->shape[i] == shape[i];
        snprintf(want + strlen(want), sizeof(want) - strlen(want), "%s%lld", i ? ", " : "", (long long)shape[i]);
    }
    if (same)
        return PM_OK;
    for (int i = 0; i < t->rank; i++)
        snprintf(have + strlen(have), sizeof(have) - strlen(have), "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has shape [%s], but the config asks for [%s]",
                   pm_checkpoint_file(loader->checkpoint, t), t->name, have, want);
}

static float read_float(const pm_stored *t, size_t i)
{
    uint32_t bits;
    float value;
    if (t->dtype == PM_F32) {
        memcpy(&value, (const char *)t->data + 4 * i, 4);
        return value;
    }
    uint16_t half;
    memcpy(&half, (const char *)t->data + 2 * i, 2);
    if (t->dtype == PM_BF16) {
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, 4);
        return value;
    }
    int exponent = half >> 10 & 31, fraction = half & 1023; /* IEEE binary16 */
    value = exponent == 31 ? (fraction ? NAN : INFINITY)
                           : ldexpf((float)(exponent ? fraction + 1024 : fraction), (exponent ? exponent : 1) - 25);
    return half & 0x8000 ? -value : value;
}

/* ---- vectors and convolutions ---- */

int pm_loader_tensor(pm_loader *loader, int64_t rows, int64_t cols, const float *init, pm_tensor **out, pm_error *err)
{
    void *list = loader->tensors;
    int status = pm_grow(&list, &loader->cap_tensors, loader->n_tensors + 1, sizeof(*loader->tensors));
    loader->tensors = list;
    if (status != PM_OK)
        return pm_fail_memory(err);
    status = loader->backend->ops->tensor_new(loader->backend, rows, cols, init, out, err);
    if (status == PM_OK)
        loader->tensors[loader->n_tensors++] = *out;
    return status;
}

/* Values of a small float tensor, plus `shift`, to `out`. One that is not a number is refused here: not all of them
 * show in the logits (what experts are chosen by does not). */
static int read_floats(pm_loader *loader, const pm_stored *t, size_t n, float shift, float *out, pm_error *err)
{
    if (!is_float(t->dtype))
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has dtype %s, expected F32, F16 or BF16",
                       pm_checkpoint_file(loader->checkpoint, t), t->name, pm_dtype_name(t->dtype));
    for (size_t i = 0; i < n; i++) {
        out[i] = read_float(t, i) + shift;
        if (isnan(out[i]))
            return fail_tensor(loader, t, err, "has a value that is not a number");
    }
    loader->parameters += (int64_t)n;
    loader->active += (int64_t)n;
    return PM_OK;
}

/* The tensor as [rows, cols] on the backend. Both layouts of a convolution have the same order in memory. */
static int load_floats(pm_loader *loader, const pm_stored *t, int64_t rows, int64_t cols, float shift, pm_tensor **out,
                       pm_error *err)
{
    size_t n = (size_t)rows * (size_t)cols;
    float *values = malloc(n * sizeof(*values));
    if (!values)
        return pm_fail_memory(err);
    int status = read_floats(loader, t, n, shift, values, err);
    if (status == PM_OK)
        status = pm_loader_tensor(loader, rows, cols, values, out, err);
    free(values);
    return status;
}

static int load_bias(pm_loader *loader, const pm_stored *t, int cols, const float **out, pm_error *err)
{
    int status = check_shape(loader, t, 1, (int64_t[]){cols}, err);
    if (status != PM_OK)
        return status;
    float *values = pm_arena_alloc(loader->arena, (size_t)cols, sizeof(*values));
    if (!values)
        return pm_fail_memory(err);
    status = read_floats(loader, t, (size_t)cols, 0.0f, values, err);
    if (status == PM_OK)
        *out = values;
    return status;
}

static int load_vector(pm_loader *loader, const pm_stored *t, int cols, bool centred, pm_tensor **out, pm_error *err)
{
    int status = check_shape(loader, t, 1, (int64_t[]){cols}, err);
    return status ? status : load_floats(loader, t, 1, cols, centred && loader->centred ? 1.0f : 0.0f, out, err);
}

static int load_table(pm_loader *loader, const pm_stored *t, int rows, int cols, pm_tensor **out, pm_error *err)
{
    int status = check_shape(loader, t, 2, (int64_t[]){rows, cols}, err);
    return status ? status : load_floats(loader, t, rows, cols, 0.0f, out, err);
}

static int load_choices(pm_loader *loader, const pm_stored *t, int rows, int cols, pm_tensor **out, pm_error *err)
{
    size_t n = (size_t)rows * (size_t)cols, size = pm_dtype_size(t->dtype);
    int status = check_shape(loader, t, 2, (int64_t[]){rows, cols}, err);
    if (status != PM_OK)
        return status;
    if (t->dtype != PM_I64 && t->dtype != PM_U64 && t->dtype != PM_I32 && t->dtype != PM_U32)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has dtype %s, expected I64, I32, U64 or U32",
                       pm_checkpoint_file(loader->checkpoint, t), t->name, pm_dtype_name(t->dtype));
    float *values = malloc(n * sizeof(*values));
    if (!values)
        return pm_fail_memory(err);
    for (size_t i = 0; status == PM_OK && i < n; i++) {
        uint64_t wide = 0; /* little-endian: a negative number becomes a large one */
        memcpy(&wide, (const char *)t->data + i * size, size);
        values[i] = (float)wide;
        if (wide >= (uint64_t)loader->layout->experts)
            status = pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s sends token %zu to an expert that there is not",
                             pm_checkpoint_file(loader->checkpoint, t), t->name, i / (size_t)cols);
    }
    if (status == PM_OK)
        status = pm_loader_tensor(loader, rows, cols, values, out, err);
    free(values);
    return status;
}

static int load_conv(pm_loader *loader, const pm_stored *t, int rows, int cols, pm_tensor **out, pm_error *err)
{
    bool mlx = t->rank == 3 && t->shape[2] == 1;
    int status = check_shape(loader, t, 3, mlx ? (int64_t[]){rows, cols, 1} : (int64_t[]){rows, 1, cols}, err);
    return status ? status : load_floats(loader, t, rows, cols, 0.0f, out, err);
}

/* ---- matrices ---- */

/* The name under which the config's quantisation may have an entry for the module: any spelling that a rule maps to it.
 */
static int find_quant(const pm_loader *loader, const char *stored, const char *module, pm_quant *out, pm_error *err)
{
    char spelling[NAME_MAX_LEN];
    const json_t *table = pm_config_get(loader->config, "quantization");
    if (!table)
        table = pm_config_get(loader->config, "quantization_config");
    snprintf(spelling, sizeof(spelling), "%s", stored);
    for (const pm_rename *r = loader->layout->renames; r->from && !json_object_get(table, spelling); r++)
        if (r->to)
            pm_name_respell(r->to, r->from, module, spelling);
    return pm_config_quant(loader->config, spelling, module, out, err);
}

/* The parts of one matrix or of one stack as they lie in the file. */
typedef struct matrix {
    const pm_stored *weight, *scales, *biases, *globals, *dims; /* dims: weight_shape */
    const void *scale_data;                                     /* of scales, or what was made of them */
    pm_weight like;                                             /* all but out and pointers */
} matrix;

/* How each mode of packed weights is stored beside its weight. */
static const struct packing {
    pm_mode mode;
    pm_format format;
    pm_dtype weight;
    const char *scales; /* name of the part */
    pm_dtype scale;     /* PM_DTYPES: any float */
    bool biases;
    bool global; /* may have a global_scale */
} packings[] = {
    {PM_MODE_PACKED, PM_FORMAT_AFFINE, PM_I32, "weight_scale", PM_DTYPES, false, false},
    {PM_MODE_AFFINE, PM_FORMAT_AFFINE, PM_U32, "scales", PM_DTYPES, true, false},
    {PM_MODE_MXFP4, PM_FORMAT_MXFP4, PM_U32, "scales", PM_U8, false, false},
    {PM_MODE_MXFP8, PM_FORMAT_MXFP8, PM_U32, "scales", PM_U8, false, false},
    {PM_MODE_NVFP4, PM_FORMAT_NVFP4, PM_U32, "scales", PM_U8, false, true},
    {PM_MODE_FP8, PM_FORMAT_FP8, PM_F8_E4M3, "weight_scale_inv", PM_F32, false, false},
    {PM_MODE_FP8, PM_FORMAT_FP8, PM_F8_E4M3, "scale", PM_F32, false, false},  /* DeepSeek-V4 as released */
    {PM_MODE_FP8, PM_FORMAT_MXFP4, PM_I8, "scale", PM_F8_E8M0, false, false}, /* its experts: two values in a byte */
};

/* Whether a checkpoint of `mode` may store a weight of `dtype` so, with the scales that lie beside it. */
static bool matches(const pm_loader *loader, const struct packing *p, pm_mode mode, pm_dtype dtype, const char *module)
{
    char name[NAME_MAX_LEN];
    snprintf(name, sizeof(name), "%s.%s", module, p->scales);
    bool last = p + 1 == packings + PM_COUNT(packings) || p[1].mode != mode || p[1].weight != dtype;
    return p->mode == mode && p->weight == dtype && (last || pm_loader_peek(loader, name));
}

static pm_scale_type scale_type(const struct packing *p, pm_dtype dtype)
{
    if (p->format == PM_FORMAT_NVFP4)
        return PM_SCALE_E4M3;
    if (p->format == PM_FORMAT_FP8)
        return PM_SCALE_F32;
    return dtype == PM_U8        ? PM_SCALE_E8M0
           : dtype == PM_F8_E8M0 ? PM_SCALE_E8M0
           : dtype == PM_F32     ? PM_SCALE_F32
           : dtype == PM_F16     ? PM_SCALE_F16
                                 : PM_SCALE_BF16;
}

/* Two values of 4 bits in a byte are only known of experts of which the config says so. */
static int check_fp4(const pm_loader *loader, const pm_stored *t, pm_error *err)
{
    const json_t *dtype = pm_config_get(loader->config, "expert_dtype");
    if (!dtype)
        dtype = pm_config_get(loader->config, "quantization_config.expert_dtype");
    if (json_is_string(dtype) && strcmp(json_string_value(dtype), "fp4") == 0)
        return PM_OK;
    return fail_tensor(loader, t, err, "is packed (I8), but the config's expert_dtype is not fp4");
}

/* Scales of one byte, powers of two, as floats. */
static int widen_scales(pm_loader *loader, matrix *m, pm_error *err)
{
    const unsigned char *codes = m->scales->data;
    float *wide = pm_arena_alloc(loader->arena, m->scales->bytes ? m->scales->bytes : 1, sizeof(*wide));
    if (!wide)
        return pm_fail_memory(err);
    for (size_t i = 0; i < m->scales->bytes; i++) {
        if (codes[i] == 255)
            return fail_tensor(loader, m->scales, err, "holds a scale that is not a number");
        wide[i] = ldexpf(1.0f, codes[i] - 127);
    }
    m->scale_data = wide;
    return PM_OK;
}

/* The parts beside a packed weight, by what the config says of the module. */
static int take_packed(pm_loader *loader, const char *module, matrix *m, pm_error *err)
{
    const pm_stored *t = m->weight;
    const struct packing *p = packings, *end = packings + PM_COUNT(packings);
    char stored[NAME_MAX_LEN];
    pm_quant quant;
    static const char *const suffixes[] = {".weight", ".weight_packed"};
    size_t length = strlen(t->name);
    for (size_t i = 0; i < PM_COUNT(suffixes); i++)
        length -= pm_name_ends(t->name, suffixes[i]) ? strlen(suffixes[i]) : 0;
    snprintf(stored, sizeof(stored), "%.*s", (int)length, t->name);
    int status = find_quant(loader, stored, module, &quant, err);
    if (status != PM_OK)
        return status;
    while (p < end && !matches(loader, p, quant.mode, t->dtype, module))
        p++;
    if (p == end)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s is packed (%s), but the config's quantization says %s",
                       pm_checkpoint_file(loader->checkpoint, t), t->name, pm_dtype_name(t->dtype),
                       quant.mode == PM_MODE_NONE ? "that it is not quantised" : "that it is stored otherwise");
    if (t->dtype == PM_I8) {
        quant = (pm_quant){.mode = PM_MODE_MXFP4, .bits = 4, .group_size = 32};
        status = check_fp4(loader, t, err);
        if (status != PM_OK)
            return status;
    }
    m->scales = take(loader, module, p->scales);
    m->biases = p->biases ? take(loader, module, "biases") : NULL;
    m->globals = p->global ? take(loader, module, "global_scale") : NULL;
    m->dims = t->dtype == PM_I32 ? take(loader, module, "weight_shape") : NULL;
    if (!m->scales || (p->biases && !m->biases))
        return fail_tensor(loader, t, err, m->scales ? "has scales but no biases" : "is packed but has no scales");
    pm_dtype scale = m->scales->dtype;
    bool powers = p->format == PM_FORMAT_FP8 && scale == PM_F8_E8M0;
    if (p->scale == PM_DTYPES ? !is_float(scale) : scale != p->scale && !powers)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has dtype %s, which its mode does not use",
                       pm_checkpoint_file(loader->checkpoint, m->scales), m->scales->name, pm_dtype_name(scale));
    if (m->biases && m->biases->dtype != scale)
        return fail_tensor(loader, m->biases, err, "has another dtype than its scales");
    if (m->globals && m->globals->dtype != PM_F32)
        return fail_tensor(loader, m->globals, err, "is not F32");
    if (quant.group_size && m->like.in % quant.group_size)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has %d columns, not a multiple of the group size %d",
                       pm_checkpoint_file(loader->checkpoint, t), t->name, m->like.in, quant.group_size);
    m->like.format = p->format;
    m->like.scale_type = scale_type(p, scale);
    m->like.bits = quant.bits;
    m->like.group = quant.group_size;
    memcpy(m->like.block, quant.block, sizeof(quant.block));
    if (p->format == PM_FORMAT_FP8 && !quant.block[0]) { /* one scale for the whole matrix */
        m->like.block[0] = INT_MAX;
        m->like.block[1] = m->like.in;
    }
    m->scale_data = m->scales->data;
    return powers ? widen_scales(loader, m, err) : PM_OK;
}

/* A matrix that is absent under every name known, or of integers that are not. Where the config says that the weights
 * are stored in a way that is not read, or the scales beside them do, that is the reason. NVFP4 has several: the scale
 * of a whole matrix multiplies in modelopt's files and divides in those of compressed-tensors. */
static int fail_matrix(const pm_loader *loader, const pm_stored *t, const char *module, pm_error *err)
{
    static const struct {
        const char *part, *format;
    } foreign[] = {
        {"weight_scale_2", "modelopt's NVFP4"},
        {"weight_global_scale", "compressed-tensors' nvfp4-pack-quantized"},
    };
    char name[NAME_MAX_LEN + 32];
    pm_quant quant;
    int status = find_quant(loader, module, module, &quant, err);
    if (status != PM_OK)
        return status;
    if (!t)
        return fail_absent(loader, module, true, err);
    for (size_t i = 0; i < PM_COUNT(foreign); i++) {
        snprintf(name, sizeof(name), "%s.%s", module, foreign[i].part);
        if (pm_loader_peek(loader, name))
            return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: tensor %s (%s, with %s) is %s, which is not supported",
                           pm_checkpoint_file(loader->checkpoint, t), t->name, pm_dtype_name(t->dtype), foreign[i].part,
                           foreign[i].format);
    }
    return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: tensor %s has dtype %s, which is not supported for a matrix",
                   pm_checkpoint_file(loader->checkpoint, t), t->name, pm_dtype_name(t->dtype));
}

/* Takes the weight of a module and what lies beside it, and settles the format. */
static int take_matrix(pm_loader *loader, const char *module, int cols, matrix *out, pm_error *err)
{
    *out = (matrix){.like = {.in = cols, .global = 1.0f}};
    out->weight = take(loader, module, "weight");
    if (!out->weight)
        out->weight = take(loader, module, "weight_packed");
    if (!out->weight)
        out->weight = take(loader, module, ""); /* fused experts have no ".weight" */
    const pm_stored *t = out->weight;
    if (!t)
        return fail_matrix(loader, NULL, module, err);
    bool named_packed = pm_name_ends(t->name, ".weight_packed");
    if (t->dtype == PM_U32 || t->dtype == PM_F8_E4M3 || t->dtype == PM_I8 || (t->dtype == PM_I32 && named_packed))
        return take_packed(loader, module, out, err);
    if (!is_float(t->dtype) || named_packed)
        return fail_matrix(loader, t, module, err);
    out->like.format = t->dtype == PM_F32 ? PM_FORMAT_F32 : t->dtype == PM_F16 ? PM_FORMAT_F16 : PM_FORMAT_BF16;
    return PM_OK; /* scales or biases beside it stay unused and are refused at the end */
}

static int64_t blocks(int64_t n, int width)
{
    return (n + width - 1) / width;
}

/* Checks the shape that compressed-tensors stores beside what it packs. */
static int check_dims(const pm_loader *loader, const pm_stored *t, int rows, int cols, pm_error *err)
{
    int64_t want[2] = {rows, cols}, have[2] = {0};
    size_t size = pm_dtype_size(t->dtype);
    if (t->dtype != PM_I64 && t->dtype != PM_I32)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has dtype %s, expected I64 or I32",
                       pm_checkpoint_file(loader->checkpoint, t), t->name, pm_dtype_name(t->dtype));
    int status = check_shape(loader, t, 1, (int64_t[]){2}, err);
    for (size_t i = 0; status == PM_OK && i < 2; i++) {
        memcpy(&have[i], (const char *)t->data + i * size, size);
        if (have[i] != want[i])
            status = pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s says [%lld, %lld], but the config asks for [%d, %d]",
                             pm_checkpoint_file(loader->checkpoint, t), t->name, (long long)have[0], (long long)have[1],
                             rows, cols);
    }
    return status;
}

/* Checks the parts against [rows, cols], or [experts, rows, cols] when experts > 0. */
static int check_matrix(const pm_loader *loader, const matrix *m, int experts, int rows, pm_error *err)
{
    const pm_weight *w = &m->like;
    int rank = experts > 0 ? 3 : 2, skip = 3 - rank;
    bool words = m->weight->dtype == PM_U32 || m->weight->dtype == PM_I32, fp8 = w->format == PM_FORMAT_FP8;
    int64_t shape[3] = {experts, rows, words ? (int64_t)w->in * w->bits / 32 : w->in};
    if (m->weight->dtype == PM_I8)
        shape[2] = (int64_t)w->in * w->bits / 8;
    int64_t have = m->weight->rank > 0 ? m->weight->shape[m->weight->rank - 1] : 0;
    if (words && have != shape[2])
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor %s has %lld words per row, but %d columns of %d bits need %lld",
                       pm_checkpoint_file(loader->checkpoint, m->weight), m->weight->name, (long long)have, w->in,
                       w->bits, (long long)shape[2]);
    int status = check_shape(loader, m->weight, rank, shape + skip, err);
    if (status == PM_OK && m->dims)
        status = check_dims(loader, m->dims, rows, w->in, err);
    if (status != PM_OK || !m->scales)
        return status;
    shape[1] = fp8 ? blocks(rows, w->block[0]) : rows;
    shape[2] = fp8 ? blocks(w->in, w->block[1]) : w->in / w->group;
    if (fp8 && w->block[0] == INT_MAX && m->scales->rank <= 1) {
        if (m->scales->rank == 0 && !experts)
            return PM_OK;
        return check_shape(loader, m->scales, 1, (int64_t[]){experts ? experts : 1}, err);
    }
    status = check_shape(loader, m->scales, rank, shape + skip, err);
    if (status == PM_OK && m->biases)
        status = check_shape(loader, m->biases, rank, shape + skip, err);
    if (status == PM_OK && m->globals && (experts || m->globals->rank > 0))
        status = check_shape(loader, m->globals, 1, (int64_t[]){experts ? experts : 1}, err);
    return status;
}

/* Rows first .. first + out of matrix `index` of a stack (0 for a plain matrix) of the parts as a weight, ready to run;
 * each matrix of the stack has `rows` rows. */
static int make_weight(pm_loader *loader, const matrix *m, int index, int rows, int first, int out, pm_weight *w,
                       pm_error *err)
{
    pm_error inner;
    const float *bias = w->bias; /* loaded before */
    *w = m->like;
    w->bias = bias;
    w->out = out;
    int64_t row = (int64_t)index * rows + first;
    w->data = (const char *)m->weight->data + (size_t)row * pm_weight_row_bytes(w);
    if (w->format == PM_FORMAT_FP8) {
        w->block_first = first % w->block[0];
        row = index * blocks(rows, w->block[0]) + first / w->block[0];
    }
    if (m->scales)
        w->scales = (const char *)m->scale_data + (size_t)row * pm_weight_scale_bytes(w);
    if (m->biases)
        w->biases = (const char *)m->biases->data + (size_t)row * pm_weight_scale_bytes(w);
    if (m->globals)
        w->global =
            read_float(m->globals, (size_t)index) / 2688.0f; /* MLX: times the largest e4m3 and the largest e2m1 */
    int status = loader->backend->ops->weight_prepare(loader->backend, w, &inner);
    if (status != PM_OK)
        return pm_fail(err, status, "%s: tensor %s: %s", pm_checkpoint_file(loader->checkpoint, m->weight),
                       m->weight->name, inner.message);
    return PM_OK;
}

/* Brings all the weights of a module to the device. */
static int load_weights(pm_loader *loader, const matrix *m, pm_weight *weights, int n, pm_error *err)
{
    pm_error inner;
    const pm_backend_ops *op = loader->backend->ops;
    int status = op->weights_load ? op->weights_load(loader->backend, weights, n, &inner) : PM_OK;
    if (status != PM_OK)
        return pm_fail(err, status, "%s: tensor %s: %s", pm_checkpoint_file(loader->checkpoint, m->weight),
                       m->weight->name, inner.message);
    return PM_OK;
}

static void count_matrix(pm_loader *loader, const pm_weight *w, int64_t copies, int64_t active)
{
    int64_t n = (int64_t)w->out * w->in;
    loader->parameters += n * copies;
    loader->active += n * active;
    loader->formats[w->format][w->bits][w->group >= 128 ? 3 : w->group / 32] += (int)copies;
}

/* The matrix of a module of its own, whose parts go to *m, not yet brought to the device. */
static int find_matrix(pm_loader *loader, const char *module, int rows, int cols, matrix *m, pm_weight *out,
                       pm_error *err)
{
    int status = take_matrix(loader, module, cols, m, err);
    if (status == PM_OK)
        status = check_matrix(loader, m, 0, rows, err);
    return status ? status : make_weight(loader, m, 0, rows, 0, rows, out, err);
}

static int load_matrix(pm_loader *loader, const char *module, int rows, int cols, pm_weight *out, pm_error *err)
{
    matrix m;
    int status = find_matrix(loader, module, rows, cols, &m, out, err);
    if (status == PM_OK)
        status = load_weights(loader, &m, out, 1, err);
    if (status == PM_OK)
        count_matrix(loader, out, 1, 1);
    return status;
}

static bool has_module(const pm_loader *loader, const char *module)
{
    char name[NAME_MAX_LEN + 16];
    snprintf(name, sizeof(name), "%s.weight_packed", module);
    if (pm_loader_peek(loader, name))
        return true;
    snprintf(name, sizeof(name), "%s.weight", module);
    return pm_loader_peek(loader, name) || pm_loader_peek(loader, module);
}

/* All experts of a module: from a stack, from part of a fused stack, or one tensor each. */
static int load_experts(pm_loader *loader, const char *module, int rows, int cols, pm_weight **out, pm_error *err)
{
    int n = loader->layout->experts, status = PM_OK;
    char stored[NAME_MAX_LEN];
    matrix m;
    pm_weight *w = pm_arena_alloc(loader->arena, (size_t)n, sizeof(*w));
    if (!w)
        return pm_fail_memory(err);
    const pm_stack *stack = loader->layout->stacks;
    while (stack->name &&
           !(pm_name_with_tail(module, stack->name, stack->stored, stored) && has_module(loader, stored)))
        stack++;
    if (stack->name) {
        status = take_matrix(loader, stored, cols, &m, err);
        if (status == PM_OK)
            status = check_matrix(loader, &m, n, rows * stack->parts, err);
        for (int e = 0; status == PM_OK && e < n; e++)
            status = make_weight(loader, &m, e, rows * stack->parts, rows * stack->part, rows, &w[e], err);
    } else {
        const char *last = strrchr(module, '.');
        for (int e = 0; status == PM_OK && e < n; e++) {
            snprintf(stored, sizeof(stored), "%.*s.%d%s", (int)(last - module), module, e, last);
            status = find_matrix(loader, stored, rows, cols, &m, &w[e], err);
        }
    }
    if (status == PM_OK)
        status = load_weights(loader, &m, w, n, err);
    if (status == PM_OK) {
        count_matrix(loader, &w[0], n, loader->layout->top_k);
        *out = w;
    }
    return status;
}

/* One matrix for each head, "module.3". */
static int load_single_heads(pm_loader *loader, const char *module, int rows, int cols, pm_weight *w, pm_error *err)
{
    char stored[NAME_MAX_LEN + 16];
    matrix m;
    int status = PM_OK, n = loader->layout->heads;
    for (int h = 0; status == PM_OK && h < n; h++) {
        snprintf(stored, sizeof(stored), "%s.%d", module, h);
        status = find_matrix(loader, stored, rows, cols, &m, &w[h], err);
        if (status == PM_OK)
            count_matrix(loader, &w[h], 1, 1);
    }
    return status ? status : load_weights(loader, &m, w, n, err);
}

/* The matrices of all heads: a stack, one matrix with the rows of all, rows of one matrix of another module, or one
 * matrix each. */
static int load_heads(pm_loader *loader, const char *module, int rows, int cols, pm_head_weights *out, pm_error *err)
{
    const pm_layout *layout = loader->layout;
    const pm_split *split = has_module(loader, module) ? NULL : layout->splits;
    char stored[NAME_MAX_LEN + 16];
    matrix m;
    int status;
    pm_weight *w = pm_arena_alloc(loader->arena, (size_t)layout->heads, sizeof(*w));
    if (!w)
        return pm_fail_memory(err);
    snprintf(stored, sizeof(stored), "%s.0", module);
    if (has_module(loader, stored)) {
        status = load_single_heads(loader, module, rows, cols, w, err);
        if (status == PM_OK)
            *out = (pm_head_weights){w, false};
        return status;
    }
    while (split && split->name && !pm_name_with_tail(module, split->name, split->stored, stored))
        split++;
    bool parts = split && split->name && has_module(loader, stored), transposed = parts && split->transposed;
    int first = parts ? layout->dims[split->first] : 0, each = parts ? layout->dims[split->of] : rows;
    if (transposed) {
        int kept = rows;
        rows = cols;
        cols = kept;
    }
    status = take_matrix(loader, parts ? stored : module, cols, &m, err);
    bool whole = parts || (status == PM_OK && m.weight->rank == 2);
    if (status == PM_OK)
        status = check_matrix(loader, &m, whole ? 0 : layout->heads, whole ? layout->heads * each : rows, err);
    for (int h = 0; status == PM_OK && h < layout->heads; h++)
        status = whole ? make_weight(loader, &m, 0, layout->heads * each, h * each + first, rows, &w[h], err)
                       : make_weight(loader, &m, h, rows, 0, rows, &w[h], err);
    if (status == PM_OK)
        status = load_weights(loader, &m, w, layout->heads, err);
    if (status == PM_OK) {
        count_matrix(loader, &w[0], layout->heads, layout->heads);
        *out = (pm_head_weights){w, transposed};
    }
    return status;
}

/* ---- tables ---- */

/* Hands an expectation to the plan; experts as one stack, in the first layout that has them unfused. */
static int plan_one(const pm_loader *loader, const pm_expect *e, const char *module, pm_error *err)
{
    char stored[NAME_MAX_LEN];
    pm_planned planned = {.module = module,
                          .kind = e->kind,
                          .rows = loader->layout->dims[e->rows],
                          .cols = loader->layout->dims[e->cols],
                          .below = loader->layout->experts};
    if (e->kind == PM_EXPECT_IGNORED)
        return PM_OK;
    if (e->kind == PM_EXPECT_HEADS) {
        planned.kind = PM_EXPECT_EXPERTS;
        planned.experts = loader->layout->heads;
    }
    if (e->kind == PM_EXPECT_EXPERTS) {
        planned.experts = loader->layout->experts;
        for (const pm_stack *stack = loader->layout->stacks; stack->name; stack++)
            if (stack->parts == 1 && pm_name_with_tail(module, stack->name, stack->stored, stored)) {
                planned.module = stored;
                break;
            }
    }
    return loader->plan(loader->plan_user, &planned, err);
}

static int load_one(pm_loader *loader, const pm_expect *e, const char *module, void *field, pm_error *err)
{
    int rows = loader->layout->dims[e->rows], cols = loader->layout->dims[e->cols];
    const pm_stored *t;
    if (loader->plan)
        return plan_one(loader, e, module, err);
    switch (e->kind) {
    case PM_EXPECT_MATRIX: return load_matrix(loader, module, rows, cols, field, err);
    case PM_EXPECT_EXPERTS: return load_experts(loader, module, rows, cols, field, err);
    case PM_EXPECT_HEADS: return load_heads(loader, module, rows, cols, field, err);
    case PM_EXPECT_IGNORED:
    case PM_EXPECT_TABLE:
    case PM_EXPECT_CHOICES:
    case PM_EXPECT_BIAS:
    case PM_EXPECT_VECTOR:
    case PM_EXPECT_CONV: break;
    }
    t = take(loader, module, "");
    if (!t)
        return fail_absent(loader, module, false, err);
    if (e->kind == PM_EXPECT_IGNORED)
        return is_float(t->dtype) ? check_shape(loader, t, 1, (int64_t[]){cols}, err)
                                  : fail_tensor(loader, t, err, "is not of a float dtype");
    if (e->kind == PM_EXPECT_BIAS)
        return load_bias(loader, t, cols, field, err);
    if (e->kind == PM_EXPECT_VECTOR)
        return load_vector(loader, t, cols, e->flags & PM_EXPECT_CENTRED, field, err);
    if (e->kind == PM_EXPECT_TABLE)
        return load_table(loader, t, rows, cols, field, err);
    if (e->kind == PM_EXPECT_CHOICES)
        return load_choices(loader, t, rows, cols, field, err);
    return load_conv(loader, t, rows, cols, field, err);
}

int pm_load(pm_loader *loader, const pm_expect *table, size_t n, int layer, unsigned kind, void *into, pm_error *err)
{
    char module[NAME_MAX_LEN];
    for (size_t i = 0; i < n; i++) {
        const pm_expect *e = &table[i];
        if ((e->when && !(e->when & kind)) || ((e->flags & PM_EXPECT_GATE) && loader->layout->ungated))
            continue;
        if (layer < 0)
            snprintf(module, sizeof(module), "%s", e->name);
        else
            snprintf(module, sizeof(module), "model.layers.%d.%s", layer, e->name);
        if ((e->flags & PM_EXPECT_OPTIONAL) && !loader->plan && !has_module(loader, module))
            continue;
        int status = load_one(loader, e, module, (char *)into + e->field, err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

void pm_loader_formats(const pm_loader *loader, char *out, size_t size)
{
    static const char *const names[PM_FORMATS] = {"f32", "f16", "bf16", "affine", "mxfp4", "mxfp8", "nvfp4", "fp8"};
    static const char more[] = ", ...";
    static const int groups[] = {16, 32, 64, 128};
    size_t used = 0;
    bool full = false;
    *out = 0;
    for (int f = 0; f < PM_FORMATS; f++)
        for (int b = 0; b < 9; b++)
            for (size_t g = 0; g < PM_COUNT(groups); g++) {
                int n = loader->formats[f][b][g];
                char kind[32] = "", entry[96];
                if (!n || full)
                    continue;
                if (f == PM_FORMAT_AFFINE)
                    snprintf(kind, sizeof(kind), " %d-bit group %d", b, groups[g]);
                snprintf(entry, sizeof(entry), "%s%s%s (%d %s)", used ? ", " : "", names[f], kind, n,
                         n == 1 ? "matrix" : "matrices");
                full = used + strlen(entry) + sizeof(more) > size;
                used += (size_t)snprintf(out + used, size - used, "%s", full ? more : entry);
            }
}
