/* Writes a checkpoint with random weights, for benchmarks: any supported family, at the dimensions of a config.
 *
 *     random_checkpoint OUT CONFIG [--layers N] [--format F] [--group N] [--seed N] [--tokenizer DIR]
 *
 * CONFIG is a config.json or the name of one in tools/presets. The same arguments give the same bytes. Matrices have
 * variance 1 / in, so that activations keep their size; the tensors are those that the family itself says it expects.
 */
#include "files/config.h"
#include "model/model.h"
#include "model/weights.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FP8_BLOCK = 128 };

/* How matrices are stored. */
typedef struct format {
    const char *name, *mode; /* mode NULL: floats */
    int bits, group;         /* group 0: chosen by --group */
    const char *dtype;       /* of the weight */
} format;

static const format formats[] = {
    {"f32", NULL, 32, 0, "F32"},
    {"f16", NULL, 16, 0, "F16"},
    {"bf16", NULL, 16, 0, "BF16"},
    {"2bit", "affine", 2, 0, "U32"},
    {"3bit", "affine", 3, 0, "U32"},
    {"4bit", "affine", 4, 0, "U32"},
    {"5bit", "affine", 5, 0, "U32"},
    {"6bit", "affine", 6, 0, "U32"},
    {"8bit", "affine", 8, 0, "U32"},
    {"mxfp4", "mxfp4", 4, 32, "U32"},
    {"mxfp8", "mxfp8", 8, 32, "U32"},
    {"nvfp4", "nvfp4", 4, 16, "U32"},
    {"fp8", "fp8", 8, FP8_BLOCK, "F8_E4M3"},
};

/* What fills a part: floats, any bits, e4m3 codes but NaN, the scale codes `code` and `code` + 1, or the numbers below
 * `code` in turn. */
typedef enum contents { FLOATS, BITS, E4M3, CODES, NUMBERS } contents;

/* One part of a planned tensor, as it will lie in the file. */
typedef struct part {
    char name[200];
    const char *dtype;
    int rank;
    int64_t shape[3];
    int64_t bytes;
    double centre, spread; /* of float values: centre + spread * u, u uniform in [-1, 1) */
    contents contents;
    int code;
    double next; /* how often it is code + 1 */
} part;

typedef struct plan {
    const format *matrix;
    int group;
    part *parts;
    size_t n, cap;
    json_t *overrides; /* of the quantization object */
} plan;

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "random_checkpoint: %s: %s\n", what, why);
    return 1;
}

/* ---- planning ---- */

static int dtype_size(const char *dtype)
{
    if (strcmp(dtype, "U32") == 0 || strcmp(dtype, "F32") == 0)
        return 4;
    return strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2 : 1;
}

static double e4m3(int code)
{
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10);
}

/* The root mean square of uniform codes. */
static double rms_of_codes(bool e2m1)
{
    static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    double sum = 0;
    for (int i = 0; i < 127; i++)
        sum += e2m1 ? values[i % 8] * values[i % 8] : e4m3(i) * e4m3(i);
    return sqrt(sum / 127);
}

static int add_part(plan *p, const pm_planned *t, const char *suffix, const char *dtype, int64_t cols, double centre,
                    double spread, pm_error *err)
{
    void *parts = p->parts;
    int status = pm_grow(&parts, &p->cap, p->n + 1, sizeof(*p->parts));
    p->parts = parts;
    if (status != PM_OK)
        return pm_fail_memory(err);
    part *out = &p->parts[p->n++];
    *out = (part){.dtype = dtype,
                  .centre = centre,
                  .spread = spread,
                  .contents = strcmp(dtype, "U32") == 0 ? BITS : FLOATS,
                  .bytes = dtype_size(dtype)};
    snprintf(out->name, sizeof(out->name), "%s%s", t->module, suffix);
    if (t->experts)
        out->shape[out->rank++] = t->experts;
    if (t->kind != PM_EXPECT_VECTOR)
        out->shape[out->rank++] = t->rows;
    out->shape[out->rank++] = cols;
    if (t->kind == PM_EXPECT_CONV)
        out->shape[out->rank++] = 1; /* MLX's layout, so norms are stored as w */
    for (int i = 0; i < out->rank; i++)
        out->bytes *= out->shape[i];
    return PM_OK;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* mlx-lm keeps routers at 8 bits. */
static bool is_router(const char *module)
{
    return ends_with(module, "mlp.gate") || ends_with(module, "shared_expert_gate");
}

/* Block fp8 checkpoints leave embeddings and heads as they were. */
static bool is_vocabulary(const char *module)
{
    return ends_with(module, "embed_tokens") || ends_with(module, "lm_head");
}

static int plan_affine(plan *p, const pm_planned *t, int bits, int group, pm_error *err)
{
    double spread = sqrt(3.0 / t->cols), scale = 2.0 * spread / ((1 << bits) - 1);
    int status = add_part(p, t, ".weight", "U32", (int64_t)t->cols * bits / 32, 0.0, 0.0, err);
    if (status == PM_OK)
        status = add_part(p, t, ".scales", "BF16", t->cols / group, scale, 0.1 * scale, err);
    return status ? status : add_part(p, t, ".biases", "BF16", t->cols / group, -spread, 0.1 * spread, err);
}

/* MX, NVFP4 and block fp8: codes of any value times a scale that makes their variance about 1 / in. */
static int plan_codes(plan *p, const pm_planned *t, pm_error *err)
{
    const format *f = p->matrix;
    bool fp8 = strcmp(f->mode, "fp8") == 0;
    double scale = 1 / (sqrt(t->cols) * rms_of_codes(f->bits == 4));
    int status = add_part(p, t, ".weight", f->dtype, fp8 ? t->cols : (int64_t)t->cols * f->bits / 32, 0.0, 0.0, err);
    if (status != PM_OK)
        return status;
    p->parts[p->n - 1].contents = f->bits == 8 ? E4M3 : BITS;
    if (fp8) {
        pm_planned blocks = *t;
        blocks.rows = (t->rows + FP8_BLOCK - 1) / FP8_BLOCK;
        return add_part(p, &blocks, ".weight_scale_inv", "F32", (t->cols + FP8_BLOCK - 1) / FP8_BLOCK, scale, 0.0, err);
    }
    status = add_part(p, t, ".scales", "U8", t->cols / f->group, 0.0, 0.0, err);
    if (status != PM_OK)
        return status;
    part *scales = &p->parts[p->n - 1];
    scales->contents = CODES;
    if (strcmp(f->mode, "nvfp4") == 0) { /* e4m3: the two codes around it */
        while (scales->code < 125 && e4m3(scales->code + 1) <= scale)
            scales->code++;
        double low = e4m3(scales->code), high = e4m3(scales->code + 1);
        scales->next = (scale * scale - low * low) / (high * high - low * low);
    } else { /* e8m0: the two powers of two around it */
        int exponent = (int)floor(log2(scale));
        scales->code = exponent + 127;
        scales->next = (pow(scale / ldexp(1, exponent), 2) - 1) / 3;
    }
    return PM_OK;
}

static int plan_matrix(plan *p, const pm_planned *t, pm_error *err)
{
    const format *f = p->matrix;
    bool affine = f->mode && strcmp(f->mode, "affine") == 0, fp8 = f->mode && strcmp(f->mode, "fp8") == 0;
    bool router = is_router(t->module);
    int bits = f->bits, group = p->group;
    if (!f->mode || (fp8 && (router || is_vocabulary(t->module))))
        return add_part(p, t, ".weight", f->mode ? "BF16" : f->dtype, t->cols, 0.0, sqrt(3.0 / t->cols), err);
    if (router && !(affine && bits == 8)) {
        bits = 8;
        group = affine ? group : 64;
        json_object_set_new(p->overrides, t->module, json_pack("{s:i, s:i}", "bits", bits, "group_size", group));
    }
    if (!fp8 && t->cols % group)
        return pm_fail(err, PM_ERR_INVALID, "%s has %d columns, not a multiple of the group size %d", t->module,
                       t->cols, group);
    return affine || router ? plan_affine(p, t, bits, group, err) : plan_codes(p, t, err);
}

static int plan_tensor(void *user, const pm_planned *t, pm_error *err)
{
    plan *p = user;
    if (t->kind == PM_EXPECT_MATRIX || t->kind == PM_EXPECT_EXPERTS)
        return plan_matrix(p, t, err);
    if (t->kind == PM_EXPECT_CONV)
        return add_part(p, t, "", "BF16", t->cols, 0.0, sqrt(3.0 / t->cols), err);
    if (t->kind == PM_EXPECT_TABLE)
        return add_part(p, t, "", "F32", t->cols, 0.0, sqrt(3.0 / t->cols), err);
    if (t->kind == PM_EXPECT_CHOICES) {
        int status = add_part(p, t, "", "U32", t->cols, 0.0, 0.0, err);
        if (status == PM_OK) {
            p->parts[p->n - 1].contents = NUMBERS;
            p->parts[p->n - 1].code = t->below;
        }
        return status;
    }
    if (ends_with(t->module, "A_log"))
        return add_part(p, t, "", "F32", t->cols, 1.0, 1.0, err); /* decay rates e^0 .. e^2 */
    if (ends_with(t->module, "dt_bias"))
        return add_part(p, t, "", "F32", t->cols, -3.0, 1.0, err);
    return add_part(p, t, "", "BF16", t->cols, 1.0, 0.1, err); /* norms */
}

/* ---- writing ---- */

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Fills `bytes` of `out` with values of the part. */
static void fill(const part *p, uint64_t *state, unsigned char *out, size_t bytes)
{
    if (p->contents == BITS || p->contents == E4M3) {
        for (size_t i = 0; i < bytes; i += 8) {
            uint64_t word = next(state);
            memcpy(out + i, &word, bytes - i < 8 ? bytes - i : 8);
        }
        for (size_t i = 0; i < bytes && p->contents == E4M3; i++)
            out[i] = (out[i] & 127) == 127 ? out[i] ^ 1 : out[i];
        return;
    }
    if (p->contents == CODES) {
        for (size_t i = 0; i < bytes; i++)
            out[i] = (unsigned char)(p->code + ((double)(next(state) >> 11) * 0x1p-53 < p->next));
        return;
    }
    if (p->contents == NUMBERS) { /* one after the other, so that those of a row differ */
        for (size_t i = 0; i < bytes; i += 4) {
            uint32_t number = (uint32_t)((*state)++ % (uint64_t)p->code);
            memcpy(out + i, &number, 4);
        }
        return;
    }
    size_t size = strcmp(p->dtype, "F32") == 0 ? 4 : 2;
    for (size_t i = 0; i < bytes; i += size) {
        float value = (float)(p->centre + p->spread * ((double)(next(state) >> 11) * 0x1p-52 - 1.0));
        uint32_t word;
        memcpy(&word, &value, 4);
        if (strcmp(p->dtype, "F32") == 0) {
            memcpy(out + i, &word, 4);
        } else if (strcmp(p->dtype, "BF16") == 0) {
            memcpy(out + i, (unsigned char *)&word + 2, 2);
        } else { /* binary16, towards zero; the values are normal in it or flushed */
            int exponent = (int)(word >> 23 & 255) - 112;
            uint16_t half =
                (uint16_t)(word >> 16 & 0x8000) | (exponent > 0 ? (uint16_t)(exponent << 10 | (word >> 13 & 1023)) : 0);
            memcpy(out + i, &half, 2);
        }
    }
}

static int write_tensors(const plan *p, uint64_t seed, const char *path)
{
    enum { BLOCK = 1 << 20 };
    json_t *header = json_object();
    int64_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        const part *t = &p->parts[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    unsigned char *block = malloc(BLOCK);
    FILE *f = text && block ? fopen(path, "wb") : NULL;
    uint64_t length = text ? strlen(text) : 0, state = seed;
    bool ok = f && fwrite(&length, 8, 1, f) == 1 && fwrite(text, 1, length, f) == length;
    for (size_t i = 0; ok && i < p->n; i++)
        for (int64_t left = p->parts[i].bytes; ok && left > 0; left -= BLOCK) {
            size_t n = left < BLOCK ? (size_t)left : BLOCK;
            fill(&p->parts[i], &state, block, n);
            ok = fwrite(block, 1, n, f) == n;
        }
    if (f && fclose(f) != 0)
        ok = false;
    free(block);
    free(text);
    return ok ? 0 : fail(path, strerror(errno));
}

static int copy_file(const char *from_dir, const char *to_dir, const char *name)
{
    char path[4096];
    pm_buf data = {0};
    pm_error err;
    snprintf(path, sizeof(path), "%s/%s", from_dir, name);
    if (pm_read_file(path, SIZE_MAX / 2, &data, &err) != PM_OK)
        return fail(path, err.message);
    snprintf(path, sizeof(path), "%s/%s", to_dir, name);
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(data.data, 1, data.len, f) == data.len;
    if (f && fclose(f) != 0)
        ok = false;
    pm_buf_free(&data);
    return ok ? 0 : fail(path, strerror(errno));
}

/* ---- main ---- */

typedef struct arguments {
    const char *out, *config, *tokenizer;
    int layers;
    plan plan;
    uint64_t seed;
} arguments;

static int usage(void)
{
    fprintf(stderr,
            "usage: random_checkpoint OUT CONFIG [--layers N] [--format F] [--group N] [--seed N] [--tokenizer DIR]\n"
            "CONFIG: a config.json, or the name of one in tools/presets. F:");
    for (size_t i = 0; i < PM_COUNT(formats); i++)
        fprintf(stderr, " %s", formats[i].name);
    fprintf(stderr, " (default 4bit, groups of 64)\n");
    return 2;
}

static int parse(int argc, char **argv, arguments *a)
{
    static const struct option options[] = {{"layers", 1, NULL, 'l'},    {"format", 1, NULL, 'f'},
                                            {"group", 1, NULL, 'g'},     {"seed", 1, NULL, 's'},
                                            {"tokenizer", 1, NULL, 't'}, {0}};
    const char *name = "4bit";
    *a = (arguments){.tokenizer = PM_SOURCE_DIR "/models/default", .plan.group = 64};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'l': a->layers = atoi(optarg); break;
        case 'f': name = optarg; break;
        case 'g': a->plan.group = atoi(optarg); break;
        case 's': a->seed = strtoull(optarg, NULL, 10); break;
        case 't': a->tokenizer = optarg; break;
        default: return usage();
        }
    for (size_t i = 0; i < PM_COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0)
            a->plan.matrix = &formats[i];
    if (argc - optind != 2 || !a->plan.matrix || a->layers < 0 || a->plan.group < 1)
        return usage();
    if (a->plan.matrix->group)
        a->plan.group = a->plan.matrix->group;
    a->out = argv[optind];
    a->config = argv[optind + 1];
    return 0;
}

/* The first n layers of the fields that say what each layer is: lists, and Nemotron-H's pattern. */
static void cut_layers(json_t *text, int n)
{
    static const char *const lists[] = {"layer_types", "layers_block_type", "mlp_layer_types", "indexer_types",
                                        "compress_ratios"};
    for (size_t i = 0; i < PM_COUNT(lists); i++) {
        json_t *list = json_object_get(text, lists[i]);
        while (list && json_array_size(list) > (size_t)n)
            json_array_remove(list, json_array_size(list) - 1);
    }
    json_t *pattern = json_object_get(text, "hybrid_override_pattern");
    if (pattern && json_string_length(pattern) > (size_t)n)
        json_object_set_new(text, "hybrid_override_pattern", json_stringn(json_string_value(pattern), (size_t)n));
    json_object_set_new(text, "num_hidden_layers", json_integer(n));
}

/* The config with fewer layers. */
static json_t *edit_config(const pm_config *config, const arguments *a)
{
    if (a->layers)
        cut_layers(config->text == config->root ? config->root : json_object_get(config->root, "text_config"),
                   a->layers);
    return config->root;
}

static int run(arguments *a)
{
    static const char *const copied[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                         "generation_config.json"};
    char preset[4096], path[4096];
    pm_config config = {0};
    pm_error err;
    plan *p = &a->plan;
    snprintf(preset, sizeof(preset), "%s", a->config);
    if (!pm_is_file(preset))
        snprintf(preset, sizeof(preset), "%s/tools/presets/%s.json", PM_SOURCE_DIR, a->config);
    if (pm_json_file(preset, 0, &config.root, &err) != PM_OK)
        return fail(a->config, err.message);
    config.path = preset;
    config.text = json_object_get(config.root, "text_config");
    config.text = config.text ? config.text : config.root;
    json_t *root = edit_config(&config, a);
    p->overrides = json_object();
    int status = pm_model_plan(&config, plan_tensor, p, &err) == PM_OK ? 0 : fail(a->config, err.message);
    json_object_del(root, "quantization"); /* of the checkpoint that the config came from */
    json_object_del(root, "quantization_config");
    if (!status && p->matrix->mode && strcmp(p->matrix->mode, "fp8") == 0) {
        json_object_set_new(root, "quantization_config",
                            json_pack("{s:s, s:s, s:[i, i]}", "quant_method", "fp8", "fmt", "e4m3", "weight_block_size",
                                      FP8_BLOCK, FP8_BLOCK));
    } else if (!status && p->matrix->mode) {
        json_object_update_new(p->overrides, json_pack("{s:i, s:i, s:s}", "group_size", p->group, "bits",
                                                       p->matrix->bits, "mode", p->matrix->mode));
        json_object_set(root, "quantization", p->overrides);
    }
    if (!status && mkdir(a->out, 0777) != 0 && errno != EEXIST)
        status = fail(a->out, strerror(errno));
    for (size_t i = 0; !status && i < PM_COUNT(copied); i++)
        status = copy_file(a->tokenizer, a->out, copied[i]);
    snprintf(path, sizeof(path), "%s/config.json", a->out);
    if (!status && json_dump_file(root, path, JSON_INDENT(4)) != 0)
        status = fail(path, strerror(errno));
    snprintf(path, sizeof(path), "%s/model.safetensors", a->out);
    if (!status)
        status = write_tensors(p, a->seed, path);
    json_decref(p->overrides);
    json_decref(config.root);
    free(p->parts);
    return status;
}

int main(int argc, char **argv)
{
    arguments a;
    int status = parse(argc, argv, &a);
    return status ? status : run(&a);
}
