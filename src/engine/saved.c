/* Saved sessions. The file (files/stream.h), version 2:
 *
 *     "polymath", version u32, kv_type u32, precision u32, model_type [64] padded with zeros
 *     checkpoint u64, layout u64         hashes: of config and tensors; of what a session keeps
 *     size u64, note u64, tokens u64     bytes of the file and of the note, length of the timeline
 *     has_logits u32, snapshots u32
 *     note, tokens i32 [tokens]
 *     rows      each [tokens / ratio, planes] vectors of the KV type
 *     states    each [count] f32
 *     logits    [vocab] f32, when has_logits
 *     snapshots each: position u64, states, logits
 *     checksum u64
 *
 * Every size that is read follows from the engine, from the header and from the length of the file, which have to agree
 * before anything is made. */
#include "engine/saved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 2, PIECE = 64, SAMPLED_TENSORS = 1024, SAMPLE = 32 };

static const char magic[8] = {'p', 'o', 'l', 'y', 'm', 'a', 't', 'h'};

typedef struct header {
    pm_owner owner;
    uint64_t size, note, tokens;
    uint32_t has_logits, snapshots;
} header;

/* ---- whose session ---- */

/* Tells checkpoints apart: config, names, dtypes and shapes of all tensors, and some bytes from the middle of some. */
static int hash_checkpoint(const pm_engine *engine, uint64_t *out, pm_error *err)
{
    int status = pm_checkpoint_check(engine->checkpoint, err);
    if (status != PM_OK)
        return status;
    char *config = json_dumps(engine->config->root, JSON_COMPACT | JSON_SORT_KEYS);
    if (!config)
        return pm_fail_memory(err);
    pm_hash hash;
    pm_hash_start(&hash);
    pm_hash_add(&hash, config, strlen(config) + 1);
    free(config);
    size_t n = pm_checkpoint_count(engine->checkpoint), step = n / SAMPLED_TENSORS + 1;
    for (size_t i = 0; i < n; i++) {
        const pm_stored *tensor = pm_checkpoint_at(engine->checkpoint, i);
        const char *dtype = pm_dtype_name(tensor->dtype);
        pm_hash_add(&hash, tensor->name, strlen(tensor->name) + 1);
        pm_hash_add(&hash, dtype, strlen(dtype) + 1);
        pm_hash_add(&hash, tensor->shape, (size_t)tensor->rank * sizeof(*tensor->shape));
        if (i % step == 0 && tensor->bytes) {
            size_t count = tensor->bytes < SAMPLE ? tensor->bytes : SAMPLE;
            pm_hash_add(&hash, (const char *)tensor->data + (tensor->bytes - count) / 2, count);
        }
    }
    *out = pm_hash_value(&hash);
    return PM_OK;
}

/* Tells apart what builds of this library keep for the same model. */
static uint64_t hash_layout(const pm_engine *engine)
{
    const pm_cache_spec *cache = engine->cache;
    int64_t counts[] = {cache->n_rows, cache->n_states, engine->vocab};
    pm_hash hash;
    pm_hash_start(&hash);
    pm_hash_add(&hash, counts, sizeof(counts));
    for (int i = 0; i < cache->n_rows; i++) {
        int64_t spec[] = {cache->rows[i].ratio, cache->rows[i].planes, cache->rows[i].width};
        pm_hash_add(&hash, spec, sizeof(spec));
    }
    for (int i = 0; i < cache->n_states; i++)
        pm_hash_add(&hash, &cache->states[i].count, sizeof(cache->states[i].count));
    return pm_hash_value(&hash);
}

int pm_owner_of(const pm_engine *engine, pm_owner *out, pm_error *err)
{
    const char *type = json_string_value(json_object_get(engine->config->root, "model_type"));
    pm_owner owner = {
        .kv_type = (uint32_t)engine->kv_type, .precision = (uint32_t)engine->precision, .layout = hash_layout(engine)};
    snprintf(owner.model_type, sizeof(owner.model_type), "%s", type ? type : "");
    int status = hash_checkpoint(engine, &owner.checkpoint, err);
    if (status == PM_OK)
        *out = owner;
    return status;
}

/* ---- sizes ---- */

static size_t row_bytes(const pm_engine *engine, int slot)
{
    const pm_rows_spec *spec = &engine->cache->rows[slot];
    return (size_t)spec->planes * pm_kv_bytes(engine->kv_type, spec->width);
}

static size_t state_bytes(const pm_engine *engine, int slot)
{
    return (size_t)engine->cache->states[slot].count * sizeof(float);
}

/* Adds n * each; false on overflow. */
static bool count(size_t *total, uint64_t n, size_t each)
{
    size_t more;
    return n <= SIZE_MAX && pm_mul((size_t)n, each, &more) && pm_add(*total, more, total);
}

/* The bytes of the whole file; false when they are beyond counting. */
static bool file_bytes(const pm_engine *engine, const header *h, uint64_t *out)
{
    size_t total = sizeof(magic) + 3 * 4 + sizeof(h->owner.model_type) + 5 * 8 + 2 * 4 + 8, states = 0;
    size_t logits = (size_t)engine->vocab * sizeof(float);
    for (int i = 0; i < engine->cache->n_states; i++)
        if (!pm_add(states, state_bytes(engine, i), &states))
            return false;
    for (int i = 0; i < engine->cache->n_rows; i++)
        if (!count(&total, h->tokens / (uint64_t)engine->cache->rows[i].ratio, row_bytes(engine, i)))
            return false;
    bool fits = count(&total, h->note, 1) && count(&total, h->tokens, sizeof(pm_token)) && count(&total, 1, states) &&
                count(&total, h->has_logits, logits) && count(&total, h->snapshots, 8) &&
                count(&total, h->snapshots, states) && count(&total, h->snapshots, logits);
    *out = total;
    return fits;
}

/* Room for a piece of rows, and for any state. */
static int make_scratch(const pm_engine *engine, void **out, pm_error *err)
{
    size_t most = 1;
    for (int i = 0; i < engine->cache->n_rows; i++)
        most = row_bytes(engine, i) * PIECE > most ? row_bytes(engine, i) * PIECE : most;
    for (int i = 0; i < engine->cache->n_states; i++)
        most = state_bytes(engine, i) > most ? state_bytes(engine, i) : most;
    *out = malloc(most);
    return *out ? PM_OK : pm_fail_memory(err);
}

/* ---- saving ---- */

static void write_header(pm_writer *writer, const header *h)
{
    pm_write(writer, magic, sizeof(magic));
    pm_write_u32(writer, VERSION);
    pm_write_u32(writer, h->owner.kv_type);
    pm_write_u32(writer, h->owner.precision);
    pm_write(writer, h->owner.model_type, sizeof(h->owner.model_type));
    const uint64_t numbers[] = {h->owner.checkpoint, h->owner.layout, h->size, h->note, h->tokens};
    for (size_t i = 0; i < PM_COUNT(numbers); i++)
        pm_write_u64(writer, numbers[i]);
    pm_write_u32(writer, h->has_logits);
    pm_write_u32(writer, h->snapshots);
}

/* A file in the making. */
typedef struct saving {
    pm_writer *writer;
    const pm_engine *engine;
    void *scratch;
    const _Atomic bool *stop; /* or NULL */
} saving;

static int check_stop(const saving *saver, pm_error *err)
{
    bool stop = saver->stop && atomic_load_explicit(saver->stop, memory_order_relaxed);
    return stop ? pm_fail(err, PM_ERR_CANCELLED, "%s: is not wanted any more", saver->writer->path) : PM_OK;
}

static int write_rows(const saving *saver, const pm_session *session, int slot, pm_error *err)
{
    const pm_engine *engine = saver->engine;
    int64_t n = (int64_t)session->length / engine->cache->rows[slot].ratio;
    for (int64_t first = 0; first < n; first += PIECE) {
        int64_t piece = n - first < PIECE ? n - first : PIECE;
        int status = check_stop(saver, err);
        if (status == PM_OK)
            status = engine->backend->ops->rows_export(engine->backend, session->rows[slot], first, piece,
                                                       saver->scratch, err);
        if (status != PM_OK)
            return status;
        pm_write(saver->writer, saver->scratch, (size_t)piece * row_bytes(engine, slot));
    }
    return PM_OK;
}

static int write_states(const saving *saver, pm_state *const *states, pm_error *err)
{
    const pm_engine *engine = saver->engine;
    for (int i = 0; i < engine->cache->n_states; i++) {
        int status = check_stop(saver, err);
        if (status == PM_OK)
            status = engine->backend->ops->state_export(engine->backend, states[i], saver->scratch, err);
        if (status != PM_OK)
            return status;
        pm_write(saver->writer, saver->scratch, state_bytes(engine, i));
    }
    return PM_OK;
}

static int write_session(const saving *saver, const pm_session *session, const header *h, const void *note,
                         pm_error *err)
{
    size_t logits = (size_t)saver->engine->vocab * sizeof(float);
    int status = PM_OK;
    write_header(saver->writer, h);
    pm_write(saver->writer, note, (size_t)h->note);
    pm_write(saver->writer, session->ids, session->length * sizeof(pm_token));
    for (int i = 0; status == PM_OK && i < saver->engine->cache->n_rows; i++)
        status = write_rows(saver, session, i, err);
    if (status == PM_OK)
        status = write_states(saver, session->states, err);
    if (h->has_logits)
        pm_write(saver->writer, session->logits, logits);
    for (int i = 0; status == PM_OK && i < session->n_snapshots; i++) {
        pm_write_u64(saver->writer, session->snapshots[i]->pos);
        status = write_states(saver, session->snapshots[i]->states, err);
        pm_write(saver->writer, session->snapshots[i]->logits, logits);
    }
    return status;
}

/* A header but for the owner; false when the file would be too large. */
static bool header_of(const pm_session *session, size_t note_len, header *out)
{
    *out = (header){.note = note_len,
                    .tokens = session->length,
                    .has_logits = session->has_logits,
                    .snapshots = (uint32_t)session->n_snapshots};
    return file_bytes(session->engine, out, &out->size);
}

bool pm_saved_bytes(const pm_session *session, size_t note_len, uint64_t *out)
{
    header h;
    if (!header_of(session, note_len, &h))
        return false;
    *out = h.size;
    return true;
}

int pm_saved_put(const pm_session *session, const pm_owner *owner, const void *note, size_t note_len, pm_writer *writer,
                 const _Atomic bool *stop, pm_error *err)
{
    header h;
    saving saver = {.writer = writer, .engine = session->engine, .stop = stop};
    if (!header_of(session, note_len, &h))
        return pm_fail_memory(err);
    h.owner = *owner;
    int status = make_scratch(session->engine, &saver.scratch, err);
    if (status == PM_OK)
        status = write_session(&saver, session, &h, note_len ? note : "", err);
    free(saver.scratch);
    return status;
}

int pm_session_save(const pm_session *session, const char *path, const void *note, size_t note_len, pm_error *err)
{
    pm_owner owner;
    pm_writer writer = {.fd = -1};
    int status = pm_owner_of(session->engine, &owner, err);
    if (status == PM_OK)
        status = pm_writer_open(&writer, path, err);
    if (status == PM_OK)
        status = pm_saved_put(session, &owner, note, note_len, &writer, NULL, err);
    if (status == PM_OK)
        status = pm_writer_commit(&writer, err);
    pm_writer_abandon(&writer);
    return status;
}

/* ---- loading ---- */

struct pm_loading {
    pm_reader reader;
    header head;
    char *note;
    void *scratch;
    pm_session *session; /* without a length until it is complete */
    int slot;            /* the layer's rows that are being read */
    bool present;        /* states and logits have been read */
    bool done;
};

/* The name that a message may show: printable ASCII, as every model_type here is, then zeros to the end. */
static bool is_name(const char *name, size_t size)
{
    size_t n = 0;
    while (n < size && name[n] > ' ' && name[n] <= '~')
        n++;
    bool ended = n < size;
    for (; n < size; n++)
        ended = ended && !name[n];
    return ended;
}

static int read_header(pm_reader *reader, header *h, pm_error *err)
{
    char start[sizeof(magic)];
    uint32_t version;
    if (reader->size < sizeof(magic) || pm_read(reader, start, sizeof(start), NULL) != PM_OK ||
        memcmp(start, magic, sizeof(magic)) != 0)
        return pm_fail(err, PM_ERR_FORMAT, "%s: is not a saved session", reader->path);
    int status = pm_read_u32(reader, &version, err);
    if (status == PM_OK && version != VERSION)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: is a saved session of version %u; this build reads version %d",
                       reader->path, version, VERSION);
    if (status == PM_OK)
        status = pm_read_u32(reader, &h->owner.kv_type, err);
    if (status == PM_OK)
        status = pm_read_u32(reader, &h->owner.precision, err);
    if (status == PM_OK)
        status = pm_read(reader, h->owner.model_type, sizeof(h->owner.model_type), err);
    uint64_t *const numbers[] = {&h->owner.checkpoint, &h->owner.layout, &h->size, &h->note, &h->tokens};
    for (size_t i = 0; status == PM_OK && i < PM_COUNT(numbers); i++)
        status = pm_read_u64(reader, numbers[i], err);
    if (status == PM_OK)
        status = pm_read_u32(reader, &h->has_logits, err);
    if (status == PM_OK)
        status = pm_read_u32(reader, &h->snapshots, err);
    if (status == PM_OK && !is_name(h->owner.model_type, sizeof(h->owner.model_type)))
        status = pm_fail(err, PM_ERR_FORMAT, "%s: is damaged: its model_type is not a name", reader->path);
    return status;
}

/* PM_OK when what `h` owns is `own`. */
static int check_owner(const pm_owner *own, const char *path, const pm_owner *h, pm_error *err)
{
    static const char *const kv_names[] = {[PM_KV_F16] = "f16", [PM_KV_F32] = "f32", [PM_KV_Q8] = "q8"};
    static const char *const precision_names[] = {[PM_PRECISION_EXACT] = "exact", [PM_PRECISION_FAST] = "fast"};
    if (strcmp(h->model_type, own->model_type) != 0)
        return pm_fail(err, PM_ERR_INVALID, "%s: is a session of a model of type '%s'; this model's type is '%s'", path,
                       h->model_type, own->model_type);
    if (h->checkpoint != own->checkpoint)
        return pm_fail(err, PM_ERR_INVALID, "%s: is a session of another '%s' checkpoint: config or tensors differ",
                       path, h->model_type);
    if (h->kv_type != own->kv_type)
        return pm_fail(err, PM_ERR_INVALID, "%s: was saved with the KV type %s; this engine's is %s", path,
                       h->kv_type < PM_COUNT(kv_names) ? kv_names[h->kv_type] : "?", kv_names[own->kv_type]);
    if (h->precision != own->precision)
        return pm_fail(err, PM_ERR_INVALID, "%s: was computed in the precision %s; this engine's is %s", path,
                       h->precision < PM_COUNT(precision_names) ? precision_names[h->precision] : "?",
                       precision_names[own->precision]);
    if (h->layout != own->layout)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s: was saved by a build that keeps sessions of '%s' in another way",
                       path, h->model_type);
    return PM_OK;
}

/* PM_OK when the header agrees with itself and with the file's length. */
static int check_sizes(const pm_engine *engine, const pm_reader *reader, const header *h, pm_error *err)
{
    uint64_t wanted;
    if (h->has_logits > (h->tokens > 0) || h->snapshots > PM_SNAPSHOTS_MAX ||
        (h->snapshots && !engine->cache->n_states) || !file_bytes(engine, h, &wanted) || wanted != h->size)
        return pm_fail(err, PM_ERR_FORMAT, "%s: is damaged: its header contradicts itself", reader->path);
    if (reader->size != h->size)
        return pm_fail(err, PM_ERR_FORMAT, "%s: is %llu bytes long, but should have %llu", reader->path,
                       (unsigned long long)reader->size, (unsigned long long)h->size);
    return PM_OK;
}

static int read_tokens(pm_reader *reader, pm_session *session, size_t n, pm_error *err)
{
    int status = pm_session_reserve(session, n, err);
    if (status == PM_OK)
        status = pm_read(reader, session->ids, n * sizeof(pm_token), err);
    if (status == PM_OK && pm_engine_check_ids(session->engine, session->ids, n, NULL) != PM_OK)
        status = pm_fail(err, PM_ERR_FORMAT, "%s: is damaged: it has tokens outside the vocabulary", reader->path);
    return status;
}

/* The next rows of the layer that is being read. */
static int read_rows(pm_loading *l, pm_error *err)
{
    const pm_engine *engine = l->session->engine;
    pm_rows *rows = l->session->rows[l->slot];
    int64_t n = (int64_t)l->head.tokens / engine->cache->rows[l->slot].ratio;
    int64_t left = n - engine->backend->ops->rows_length(rows), piece = left < PIECE ? left : PIECE;
    int status = pm_read(&l->reader, l->scratch, (size_t)piece * row_bytes(engine, l->slot), err);
    if (status == PM_OK)
        status = engine->backend->ops->rows_import(engine->backend, rows, piece, l->scratch, err);
    l->slot += left == piece;
    return status;
}

static int read_states(pm_reader *reader, const pm_engine *engine, pm_state *const *states, void *scratch,
                       pm_error *err)
{
    for (int i = 0; i < engine->cache->n_states; i++) {
        int status = pm_read(reader, scratch, state_bytes(engine, i), err);
        if (status == PM_OK)
            status = engine->backend->ops->state_import(engine->backend, states[i], scratch, err);
        if (status != PM_OK)
            return status;
    }
    return PM_OK;
}

static int read_snapshot(pm_reader *reader, pm_session *session, size_t tokens, void *scratch, pm_error *err)
{
    int n = session->n_snapshots;
    uint64_t pos, before = n ? session->snapshots[n - 1]->pos : 0;
    int status = pm_read_u64(reader, &pos, err);
    if (status != PM_OK)
        return status;
    if (pos <= before || pos > tokens)
        return pm_fail(err, PM_ERR_FORMAT, "%s: is damaged: its snapshots are out of order", reader->path);
    pm_snapshot *snapshot = pm_snapshot_add(session, (size_t)pos);
    if (!snapshot)
        return pm_fail_memory(err);
    status = read_states(reader, session->engine, snapshot->states, scratch, err);
    if (status == PM_OK)
        status = pm_read(reader, snapshot->logits, (size_t)session->engine->vocab * sizeof(float), err);
    return status;
}

/* The note, terminated. */
static int read_note(pm_reader *reader, size_t len, char **out, pm_error *err)
{
    char *note = malloc(len + 1);
    if (!note)
        return pm_fail_memory(err);
    int status = pm_read(reader, note, len, err);
    note[len] = 0;
    if (status == PM_OK)
        *out = note;
    else
        free(note);
    return status;
}

/* States, logits, and the end of a file without snapshots. */
static int read_present(pm_loading *l, pm_error *err)
{
    pm_session *session = l->session;
    int status = read_states(&l->reader, session->engine, session->states, l->scratch, err);
    if (status == PM_OK && l->head.has_logits)
        status = pm_read(&l->reader, session->logits, (size_t)session->engine->vocab * sizeof(float), err);
    l->present = true;
    return status;
}

/* The next part of the file. */
static int read_part(pm_loading *l, pm_error *err)
{
    if (l->slot < l->session->engine->cache->n_rows)
        return read_rows(l, err);
    if (!l->present)
        return read_present(l, err);
    if ((uint32_t)l->session->n_snapshots < l->head.snapshots)
        return read_snapshot(&l->reader, l->session, (size_t)l->head.tokens, l->scratch, err);
    l->done = true;
    l->session->length = (size_t)l->head.tokens;
    l->session->has_logits = l->head.has_logits;
    return pm_reader_finish(&l->reader, err);
}

int pm_loading_begin(pm_loading **out, pm_engine *engine, const pm_owner *owner, const char *path, pm_error *err)
{
    pm_loading *l = calloc(1, sizeof(*l));
    if (!l)
        return pm_fail_memory(err);
    l->reader.fd = -1;
    int status = pm_reader_open(&l->reader, path, err);
    if (status == PM_OK)
        status = read_header(&l->reader, &l->head, err);
    if (status == PM_OK)
        status = check_owner(owner, path, &l->head.owner, err);
    if (status == PM_OK)
        status = check_sizes(engine, &l->reader, &l->head, err);
    if (status == PM_OK && l->head.tokens > (uint64_t)engine->ctx)
        status = pm_fail(err, PM_ERR_LIMIT, "%s: has %llu tokens, more than the context of %d", path,
                         (unsigned long long)l->head.tokens, engine->ctx);
    if (status == PM_OK)
        status = read_note(&l->reader, (size_t)l->head.note, &l->note, err);
    if (status == PM_OK)
        status = make_scratch(engine, &l->scratch, err);
    if (status == PM_OK)
        status = pm_session_new(&l->session, engine, err);
    if (status == PM_OK)
        status = read_tokens(&l->reader, l->session, (size_t)l->head.tokens, err);
    if (status == PM_OK)
        *out = l;
    else
        pm_loading_free(l);
    return status;
}

int pm_loading_go_on(pm_loading *l, double seconds, pm_session **out, pm_error *err)
{
    double end = pm_now() + seconds;
    int status = PM_OK;
    while (status == PM_OK && !l->done) {
        status = read_part(l, err);
        if (seconds > 0 && pm_now() >= end)
            break;
    }
    if (status == PM_OK && l->done) {
        *out = l->session;
        l->session = NULL;
    }
    return status;
}

void pm_loading_free(pm_loading *l)
{
    if (!l)
        return;
    pm_session_free(l->session);
    pm_reader_close(&l->reader);
    free(l->note);
    free(l->scratch);
    free(l);
}

int pm_session_load(pm_session **out, pm_engine *engine, const char *path, char **note, size_t *note_len, pm_error *err)
{
    pm_owner owner;
    pm_loading *loading = NULL;
    int status = pm_owner_of(engine, &owner, err);
    if (status == PM_OK)
        status = pm_loading_begin(&loading, engine, &owner, path, err);
    if (status == PM_OK)
        status = pm_loading_go_on(loading, 0, out, err);
    if (status == PM_OK && note_len)
        *note_len = (size_t)loading->head.note;
    if (status == PM_OK && note) {
        *note = loading->note;
        loading->note = NULL;
    }
    pm_loading_free(loading);
    return status;
}

/* ---- looking into a file ---- */

/* The bytes that a header of any owner can be told by: whether its tokens alone would fit the file. */
static int check_other(const pm_reader *reader, const header *h, pm_error *err)
{
    if (reader->size == h->size && h->tokens <= h->size / sizeof(pm_token))
        return PM_OK;
    return pm_fail(err, PM_ERR_FORMAT, "%s: is %llu bytes long, but should have %llu", reader->path,
                   (unsigned long long)reader->size, (unsigned long long)h->size);
}

int pm_saved_peek(const pm_engine *engine, const pm_owner *owner, const char *path, pm_saved_head *out, pm_error *err)
{
    header h = {0};
    pm_reader reader = {.fd = -1};
    pm_saved_head head = {0};
    int status = pm_reader_open(&reader, path, err);
    if (status == PM_OK)
        status = read_header(&reader, &h, err);
    head.own = status == PM_OK && check_owner(owner, path, &h.owner, NULL) == PM_OK;
    if (status == PM_OK)
        status = head.own ? check_sizes(engine, &reader, &h, err) : check_other(&reader, &h, err);
    head.size = h.size;
    head.tokens = (size_t)h.tokens;
    if (status == PM_OK && head.own) {
        head.note_len = (size_t)h.note;
        head.has_logits = h.has_logits;
        head.snapshots = (int)h.snapshots;
        head.ids = malloc(head.tokens * sizeof(pm_token) + 1);
        status = head.ids ? read_note(&reader, head.note_len, &head.note, err) : pm_fail_memory(err);
        if (status == PM_OK)
            status = pm_read(&reader, head.ids, head.tokens * sizeof(pm_token), err);
    }
    pm_reader_close(&reader);
    if (status == PM_OK) {
        *out = head;
        return PM_OK;
    }
    free(head.ids);
    free(head.note);
    return status;
}
