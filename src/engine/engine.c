#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files of a model are configuration, not data: none is large. */
enum { SETTINGS_FILE_MAX = 16 << 20 };

/* ---- the smaller files ---- */

/* Parses DIR/NAME; *out stays NULL when there is no such file. */
static int open_settings(const char *dir, const char *name, json_t **out, pm_error *err)
{
    pm_buf path = {0};
    int status = PM_OK;
    if (pm_buf_printf(&path, "%s/%s", dir, name) != PM_OK)
        status = pm_fail_memory(err);
    else if (pm_is_there(path.data))
        status = pm_json_file(path.data, SETTINGS_FILE_MAX, out, err);
    pm_buf_free(&path);
    return status;
}

/* The tokens that end an answer: those of both configs, and the tokenizer's. */
static int read_stops(pm_engine *engine, const json_t *generation_config, pm_error *err)
{
    pm_token *ids = NULL, eos = pm_tokenizer_eos(engine->tokenizer);
    size_t n = 0;
    int status = pm_config_stops(engine->config, generation_config, &ids, &n, err);
    if (status != PM_OK)
        return status;
    bool known = eos < 0;
    for (size_t i = 0; i < n; i++)
        known |= ids[i] == eos;
    if (!known) {
        pm_token *more = realloc(ids, (n + 1) * sizeof(*more));
        if (!more) {
            free(ids);
            return pm_fail_memory(err);
        }
        ids = more;
        ids[n++] = eos;
    }
    engine->stops = ids;
    engine->n_stops = n;
    return PM_OK;
}

/* Gives the templates the special tokens of tokenizer_config.json. */
static int read_special_tokens(pm_engine *engine, const json_t *settings, pm_error *err)
{
    int status = pm_template_tokens(settings, &engine->special_tokens, err);
    if (status != PM_OK)
        return status;
    if (engine->chat)
        pm_template_own(engine->chat, engine->special_tokens);
    if (engine->chat_tools)
        pm_template_own(engine->chat_tools, engine->special_tokens);
    return PM_OK;
}

/* Whether the post-processor begins a text with the BOS token: seen from what it makes of an empty one. */
static int read_bos(pm_engine *engine, pm_error *err)
{
    const char *name = json_string_value(json_object_get(engine->special_tokens, "bos_token"));
    pm_token bos = name ? pm_tokenizer_id(engine->tokenizer, name) : -1, *ids = NULL;
    size_t n = 0;
    engine->bos = -1;
    if (bos < 0)
        return PM_OK;
    int status = pm_tokenizer_encode(engine->tokenizer, "", 0, &(pm_encode_options){.post = true}, &ids, &n, err);
    if (status == PM_OK && n > 0 && ids[0] == bos)
        engine->bos = bos;
    free(ids);
    return status;
}

/* Finds the token that is a newline. */
static int read_newline(pm_engine *engine, pm_error *err)
{
    pm_token *ids = NULL;
    size_t n = 0;
    int status = pm_tokenizer_encode(engine->tokenizer, "\n", 1, &(pm_encode_options){0}, &ids, &n, err);
    engine->newline = status == PM_OK && n == 1 ? ids[0] : -1;
    free(ids);
    return status;
}

/* Finds how the templates' answers have reasoning and calls, and the special tokens that this takes. */
static int read_reply(pm_engine *engine, pm_error *err)
{
    const struct {
        const pm_template *chat;
        pm_reply_format *reply;
    } templates[] = {{engine->chat, &engine->reply}, {engine->chat_tools, &engine->reply_tools}};
    size_t cap = 0, len;
    int status = PM_OK;
    for (size_t i = 0; i < PM_COUNT(templates); i++) {
        const char *source = templates[i].chat ? pm_template_source(templates[i].chat, &len) : NULL;
        if (source)
            *templates[i].reply = pm_reply_detect(source, len);
    }
    for (pm_token id = 0; status == PM_OK && id < pm_tokenizer_vocab(engine->tokenizer); id++) {
        char *text;
        if (!pm_tokenizer_special(engine->tokenizer, id))
            continue;
        status = pm_tokenizer_text(engine->tokenizer, &id, 1, true, &text, &len, err);
        if (status != PM_OK)
            break;
        bool marks = pm_reply_marker(engine->reply, text) || pm_reply_marker(engine->reply_tools, text);
        pm_free(text);
        if (!marks)
            continue;
        if (pm_grow((void **)&engine->markers, &cap, engine->n_markers + 1, sizeof(*engine->markers)) != PM_OK)
            status = pm_fail_memory(err);
        else
            engine->markers[engine->n_markers++] = id;
    }
    return status;
}

/* Tokenizer, templates, and what answers are made with. */
static int open_text(pm_engine *engine, const char *dir, pm_error *err)
{
    json_t *generation_config = NULL, *tokenizer_config = NULL;
    int status = pm_tokenizer_open(&engine->tokenizer, dir, err);
    if (status == PM_OK)
        status = pm_template_open(&engine->chat, dir, false, err);
    if (status == PM_OK)
        status = pm_template_open(&engine->chat_tools, dir, true, err);
    if (status == PM_OK)
        status = open_settings(dir, "generation_config.json", &generation_config, err);
    if (status == PM_OK)
        status = open_settings(dir, "tokenizer_config.json", &tokenizer_config, err);
    if (status == PM_OK)
        status = pm_defaults_read(generation_config, &engine->defaults, err);
    if (status == PM_OK)
        status = read_stops(engine, generation_config, err);
    if (status == PM_OK)
        status = read_special_tokens(engine, tokenizer_config, err);
    if (status == PM_OK)
        status = read_bos(engine, err);
    if (status == PM_OK)
        status = read_newline(engine, err);
    if (status == PM_OK)
        status = read_reply(engine, err);
    json_decref(generation_config);
    json_decref(tokenizer_config);
    return status;
}

/* ---- open and close ---- */

static int check_options(const char *dir, const pm_engine_options *options, pm_error *err)
{
    if (!dir || !*dir)
        return pm_fail(err, PM_ERR_INVALID, "the model's directory has no name");
    if (options->threads < 0)
        return pm_fail(err, PM_ERR_INVALID, "threads is %d, less than 0", options->threads);
    if (options->ctx < 0)
        return pm_fail(err, PM_ERR_INVALID, "ctx is %d, less than 0", options->ctx);
    if (options->step_tokens < 0 || options->step_tokens > PM_STEP_TOKENS_MAX)
        return pm_fail(err, PM_ERR_INVALID, "step_tokens is %d, not between 0 and %d", options->step_tokens,
                       PM_STEP_TOKENS_MAX);
    if (options->snapshot_stride < 0)
        return pm_fail(err, PM_ERR_INVALID, "snapshot_stride is %d, less than 0", options->snapshot_stride);
    if ((unsigned)options->kv_type > PM_KV_Q8)
        return pm_fail(err, PM_ERR_INVALID, "kv_type is %d, not one of pm_kv_type", (int)options->kv_type);
    if (options->precision != PM_PRECISION_EXACT && options->precision != PM_PRECISION_FAST)
        return pm_fail(err, PM_ERR_INVALID, "precision is %d, not one of pm_precision", (int)options->precision);
    if ((unsigned)options->device > PM_DEVICE_MLX_GPU)
        return pm_fail(err, PM_ERR_INVALID, "device is %d, not one of pm_device", (int)options->device);
    if ((unsigned)options->simd > PM_SIMD_I8MM)
        return pm_fail(err, PM_ERR_INVALID, "simd is %d, not one of pm_simd", (int)options->simd);
    return PM_OK;
}

/* Room for the steps. */
static int make_room(pm_engine *engine, pm_error *err)
{
    size_t n = (size_t)engine->step_tokens;
    engine->tokens = calloc(n, sizeof(*engine->tokens));
    engine->segments = calloc(n, sizeof(*engine->segments));
    engine->outputs = calloc(n, sizeof(*engine->outputs));
    engine->scheduled = calloc(n, sizeof(pm_session *));
    bool ok = engine->tokens && engine->segments && engine->outputs && engine->scheduled;
    return ok ? PM_OK : pm_fail_memory(err);
}

/* Backend, weights and limits. */
static int open_model(pm_engine *engine, const char *dir, const pm_engine_options *options, pm_error *err)
{
    engine->kv_type = options->kv_type;
    engine->precision = options->precision;
    engine->step_tokens = options->step_tokens ? options->step_tokens : PM_STEP_TOKENS;
    engine->snapshot_stride = options->snapshot_stride ? options->snapshot_stride : PM_SNAPSHOT_STRIDE;
    int status = pm_checkpoint_open(&engine->checkpoint, dir, err);
    if (status == PM_OK)
        status = pm_backend_open(&engine->backend, options, err);
    if (status == PM_OK && options->profile)
        status = pm_profiler_new(&engine->profiler, engine->backend, options->kv_type, err);
    if (status == PM_OK)
        status = pm_model_open(&engine->model, engine->checkpoint, engine->config, engine->backend, engine->step_tokens,
                               options->progress, options->user, err);
    if (status != PM_OK)
        return status;
    int context = pm_model_context(engine->model);
    if (options->ctx > context)
        return pm_fail(err, PM_ERR_LIMIT, "a context of %d is more than the model's max_position_embeddings of %d",
                       options->ctx, context);
    engine->ctx = options->ctx ? options->ctx : context;
    engine->vocab = pm_model_vocab(engine->model);
    engine->cache = pm_model_cache(engine->model);
    return make_room(engine, err);
}

int pm_engine_open(pm_engine **out, const char *dir, const pm_engine_options *options, pm_error *err)
{
    pm_engine_options defaults = {0};
    options = options ? options : &defaults;
    int status = check_options(dir, options, err);
    if (status != PM_OK)
        return status;
    pm_engine *engine = calloc(1, sizeof(*engine));
    if (!engine)
        return pm_fail_memory(err);
    status = pm_config_open(&engine->config, dir, err);
    if (status == PM_OK)
        status = pm_family_check(engine->config, NULL, err); /* before anything large is read */
    if (status == PM_OK)
        status = open_text(engine, dir, err);
    if (status == PM_OK)
        status = open_model(engine, dir, options, err);
    if (status == PM_OK)
        *out = engine;
    else
        pm_engine_close(engine);
    return status;
}

void pm_engine_close(pm_engine *engine)
{
    if (!engine)
        return;
    pm_model_close(engine->model);
    if (engine->backend)
        engine->backend->ops->free(engine->backend);
    pm_checkpoint_close(engine->checkpoint);
    pm_template_free(engine->chat);
    pm_template_free(engine->chat_tools);
    free(engine->markers);
    pm_constraint_words_free(&engine->words);
    pm_tokenizer_close(engine->tokenizer);
    pm_config_close(engine->config);
    json_decref(engine->special_tokens);
    free(engine->stops);
    free(engine->tokens);
    free(engine->segments);
    free(engine->outputs);
    free(engine->scheduled);
    free(engine->logits);
    free(engine);
}

/* ---- descriptions ---- */

static void copy_string(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

/* Bytes of the rows of so many tokens. */
static uint64_t row_bytes(const pm_engine *engine, int64_t tokens)
{
    uint64_t bytes = 0;
    for (int i = 0; i < engine->cache->n_rows; i++)
        bytes += engine->backend->ops->rows_bytes(&engine->cache->rows[i], engine->kv_type, tokens);
    return bytes;
}

static uint64_t state_bytes(const pm_engine *engine)
{
    uint64_t bytes = 0;
    for (int i = 0; i < engine->cache->n_states; i++)
        bytes += (uint64_t)engine->cache->states[i].count * sizeof(float);
    return bytes;
}

uint64_t pm_engine_held(const pm_engine *engine)
{
    return engine->backend->ops->held(engine->backend) + engine->logits_held * (uint64_t)engine->vocab * sizeof(float);
}

uint64_t pm_engine_session_bytes(const pm_engine *engine, size_t tokens, int snapshots)
{
    uint64_t logits = (uint64_t)engine->vocab * sizeof(float), states = state_bytes(engine);
    states += 128 * (uint64_t)engine->cache->n_states; /* heads and alignment */
    return row_bytes(engine, (int64_t)tokens) + states + 2 * logits + (uint64_t)snapshots * (states + logits);
}

/* Memory of one session that has filled its context. */
static void count_cache(const pm_engine *engine, pm_info *info)
{
    uint64_t rows = row_bytes(engine, engine->ctx), states = state_bytes(engine);
    info->cache_bytes = rows + states;
    info->row_bytes = rows / (uint64_t)engine->ctx;
    info->state_bytes = states;
}

/* Adds to the notes which settings for answers are not applied. */
static void note_unapplied(const pm_engine *engine, pm_info *info)
{
    size_t n = strlen(info->notes);
    if (*engine->defaults.unapplied)
        snprintf(info->notes + n, sizeof(info->notes) - n, "%sgeneration_config.json asks for what is not applied: %s",
                 n ? "; " : "", engine->defaults.unapplied);
}

/* Adds to the notes which weights lie beside the checkpoint and are not read. */
static void note_unread(const pm_engine *engine, pm_info *info)
{
    const char *path = engine->config->path, *slash = strrchr(path, '/');
    size_t n = strlen(info->notes);
    pm_buf dir = {0}, names = {0};
    if (pm_buf_add(&dir, slash ? path : ".", slash ? (size_t)(slash - path) : 1) == PM_OK &&
        pm_checkpoint_unread(engine->checkpoint, dir.data, &names, NULL) == PM_OK && names.len)
        snprintf(info->notes + n, sizeof(info->notes) - n, "%snot part of the checkpoint and not read: %s",
                 n ? "; " : "", names.data);
    pm_buf_free(&dir);
    pm_buf_free(&names);
}

void pm_engine_info(const pm_engine *engine, pm_info *out)
{
    *out = (pm_info){.supported = true, .verdict = "supported", .ctx = engine->ctx, .precision = engine->precision};
    pm_model_info(engine->model, out);
    const char *model_type = json_string_value(json_object_get(engine->config->root, "model_type"));
    copy_string(out->model_type, sizeof(out->model_type), model_type);
    engine->backend->ops->describe(engine->backend, out->device, sizeof(out->device));
    count_cache(engine, out);
    note_unapplied(engine, out);
    note_unread(engine, out);
}

/* Fills in what is known of a model that does not open, from its config. */
static void describe_refused(const pm_config *config, const char *verdict, pm_info *out)
{
    const char *family = NULL;
    *out = (pm_info){0};
    pm_family_check(config, &family, NULL);
    copy_string(out->verdict, sizeof(out->verdict), verdict);
    copy_string(out->model_type, sizeof(out->model_type),
                json_string_value(json_object_get(config->root, "model_type")));
    copy_string(out->family, sizeof(out->family), family);
}

int pm_inspect(const char *dir, const pm_engine_options *options, pm_info *out, pm_error *err)
{
    pm_engine_options cheap = options ? *options : (pm_engine_options){0};
    pm_engine *engine = NULL;
    pm_config *config = NULL;
    pm_error refusal;
    int status = check_options(dir, &cheap, err);
    if (status == PM_OK)
        status = pm_config_open(&config, dir, err);
    if (status != PM_OK)
        return status;
    cheap.step_tokens = 1; /* nothing is computed; weights are mapped, not read */
    status = pm_engine_open(&engine, dir, &cheap, &refusal);
    if (engine) {
        pm_engine_info(engine, out);
    } else if (status == PM_ERR_LIMIT || status == PM_ERR_MEMORY) {
        /* Not the checkpoint's fault: the ctx asked for, or this process. */
        if (err)
            *err = refusal;
    } else {
        describe_refused(config, refusal.message, out);
        status = PM_OK;
    }
    pm_engine_close(engine);
    pm_config_close(config);
    return status;
}

void pm_engine_sampling(const pm_engine *engine, pm_sampling *out)
{
    *out = engine->defaults.sampling;
}

size_t pm_engine_max_tokens(const pm_engine *engine)
{
    return engine->defaults.max_tokens;
}
