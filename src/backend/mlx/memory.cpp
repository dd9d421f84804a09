/* Rows and states. Arrays do not change, so a fork shares them and a write makes a new one, which takes the old one's
 * memory over where nobody else has it. Rows have room for more than there are. */
#include "backend/mlx/mlx.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

enum { ROOM = 256 }; /* rows are given memory so many at a time */

/* ---- rows ---- */

static int64_t room_for(int64_t rows)
{
    return (rows + ROOM - 1) / ROOM * ROOM;
}

static int rows_make(pm_mlx *mlx, const pm_rows_spec *spec, mx::Dtype type, pm_rows **out)
{
    mlx->rows.reserve(mlx->rows.size() + 1);
    *out = new pm_rows{mlx, *spec, type, 0, false, {}};
    mlx->rows.push_back(*out);
    return PM_OK;
}

int pm_mlx_rows_new(pm_backend *backend, const pm_rows_spec *spec, pm_kv_type type, pm_rows **out, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        if (spec->ratio < 1)
            return pm_fail(err, PM_ERR_INVALID, "cache rows of %d tokens are not possible", spec->ratio);
        if (spec->planes < 1 || spec->width < 1)
            return pm_fail(err, PM_ERR_INVALID, "cache rows of %d planes of %d elements are not possible", spec->planes,
                           spec->width);
        if (type == PM_KV_Q8)
            return pm_fail(err, PM_ERR_UNSUPPORTED, "the MLX backend has no q8 cache; f16 and f32 it has");
        return rows_make(mlx, spec, type == PM_KV_F16 ? mx::float16 : mx::float32, out);
    });
}

int pm_mlx_rows_fork(pm_backend *backend, const pm_rows *rows, int64_t n, pm_rows **out, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        if (n < 0 || n > rows->length)
            return pm_fail(err, PM_ERR_INVALID, "cannot fork %lld rows of a cache of %lld", (long long)n,
                           (long long)rows->length);
        int status = rows_make(mlx, &rows->spec, rows->type, out);
        (*out)->length = n;
        (*out)->written = rows->written;
        if (n)
            (*out)->value = rows->value;
        return status;
    });
}

/* Memory is given back when all rows go. */
void pm_mlx_rows_truncate(pm_backend *backend, pm_rows *rows, int64_t n)
{
    (void)backend;
    if (n < 0 || n > rows->length)
        return;
    rows->length = n;
    if (n == 0)
        rows->value.reset();
}

int64_t pm_mlx_rows_length(const pm_rows *rows)
{
    return rows->length;
}

void pm_mlx_rows_free(pm_backend *backend, pm_rows *rows)
{
    if (!rows)
        return;
    std::erase(((pm_mlx *)backend)->rows, rows);
    delete rows;
}

uint64_t pm_mlx_rows_bytes(const pm_rows_spec *spec, pm_kv_type type, int64_t tokens)
{
    if (spec->ratio < 1 || spec->planes < 1 || spec->width < 1 || tokens < 1)
        return 0;
    int64_t rows = tokens / spec->ratio + (tokens % spec->ratio != 0);
    return (uint64_t)room_for(rows) * (uint64_t)spec->planes * pm_kv_bytes(type, spec->width);
}

uint64_t pm_mlx_held(const pm_backend *backend)
{
    const pm_mlx *mlx = (const pm_mlx *)backend;
    std::unordered_set<std::uintptr_t> counted;
    uint64_t bytes = 0;
    for (const pm_rows *rows : mlx->rows)
        if (rows->value && counted.insert(rows->value->id()).second)
            bytes += rows->value->nbytes();
    for (const pm_state *state : mlx->states)
        if (counted.insert(state->value.id()).second)
            bytes += state->value.nbytes();
    return bytes;
}

/* Appends [planes, n, width] of the cache's type. */
static void append(pm_rows *rows, const mx::array &values)
{
    int planes = rows->spec.planes, width = rows->spec.width, n = values.shape(1);
    int64_t need = rows->length + n, have = rows->value ? rows->value->shape(1) : 0;
    if (n == 0)
        return;
    if (need > INT32_MAX - ROOM)
        throw std::bad_alloc();
    if (need > have) {
        std::vector<mx::array> parts;
        if (rows->length)
            parts.push_back(mx::slice(*rows->value, {0, 0, 0}, {planes, (int)rows->length, width}));
        parts.push_back(mx::zeros({planes, (int)(room_for(need) - rows->length), width}, rows->type));
        rows->value = pm_mlx_concatenate(parts, 1);
    }
    mx::Shape from = {0, (int)rows->length, 0}, to = {planes, (int)need, width};
    rows->value = mx::slice_update(*rows->value, values, from, to);
    rows->length = need;
    rows->written = true;
}

void pm_mlx_append(pm_rows *rows, const mx::array &values, int layer)
{
    bool half = rows->type == mx::float16;
    float end = half ? 65520.0f : std::numeric_limits<float>::infinity(); /* from there on f16 rounds to infinity */
    if (values.size())
        rows->backend->checks.push_back({mx::max(mx::abs(values)), end, layer, "a key or value", half ? "f16" : "f32"});
    append(rows, mx::astype(values, rows->type));
}

mx::array pm_mlx_rows_read(const pm_rows *rows, int first, int n, int64_t from, int64_t to)
{
    mx::array part = mx::slice(*rows->value, {first, (int)from, 0}, {first + n, (int)to, rows->spec.width});
    return mx::astype(part, mx::float32);
}

int pm_mlx_rows_export(pm_backend *backend, const pm_rows *rows, int64_t first, int64_t n, void *out, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        if (first < 0 || n < 0 || first > rows->length || n > rows->length - first)
            return pm_fail(err, PM_ERR_INVALID, "cannot export %lld rows from %lld of a cache of %lld", (long long)n,
                           (long long)first, (long long)rows->length);
        if (n == 0)
            return (int)PM_OK;
        int status = pm_mlx_evaluate(mlx, {}, err);
        if (status != PM_OK)
            return status;
        mx::array part =
            mx::slice(*rows->value, {0, (int)first, 0}, {rows->spec.planes, (int)(first + n), rows->spec.width});
        pm_mlx_copy_out(mx::transpose(part, {1, 0, 2}), out);
        return (int)PM_OK;
    });
}

int pm_mlx_rows_import(pm_backend *backend, pm_rows *rows, int64_t n, const void *data, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        if (n < 1)
            return (int)PM_OK;
        if (n > INT32_MAX)
            return pm_fail_memory(err);
        mx::Shape shape = {(int)n, rows->spec.planes, rows->spec.width};
        mx::array values = rows->type == mx::float16 ? mx::array((const mx::float16_t *)data, shape, mx::float16)
                                                     : mx::array((const float *)data, shape, mx::float32);
        append(rows, mx::transpose(values, {1, 0, 2}));
        return pm_mlx_evaluate(mlx, {}, err);
    });
}

int pm_mlx_check_rows(const pm_batch *batch, int slot, int layer, pm_error *err)
{
    for (int s = 0; s < batch->n_segments; s++) {
        const pm_segment *segment = &batch->segments[s];
        const pm_rows *rows = segment->rows[slot];
        if (segment->pos / rows->spec.ratio != rows->length)
            return pm_fail(err, PM_ERR_INVALID,
                           "layer %d: the cache has %lld rows of %d tokens, but the next position is %lld", layer,
                           (long long)rows->length, rows->spec.ratio, (long long)segment->pos);
    }
    return PM_OK;
}

/* ---- states ---- */

int pm_mlx_state_new(pm_backend *backend, const pm_state_spec *spec, pm_state **out, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        if (spec->count < 0)
            return pm_fail(err, PM_ERR_INVALID, "a state of %lld elements is not possible", (long long)spec->count);
        if (spec->count > INT32_MAX)
            return pm_fail_memory(err);
        mlx->states.reserve(mlx->states.size() + 1);
        *out = new pm_state{mlx, spec->count, false, mx::zeros({(int)spec->count})};
        mlx->states.push_back(*out);
        return (int)PM_OK;
    });
}

void pm_mlx_state_set(pm_state *state, const mx::array &value)
{
    state->value = mx::reshape(value, {(int)state->count});
    state->written = true;
}

void pm_mlx_state_zero(pm_backend *backend, pm_state *state)
{
    pm_mlx_guard(backend, nullptr, [&](pm_mlx *) {
        pm_mlx_state_set(state, mx::zeros({(int)state->count}));
        return (int)PM_OK;
    });
}

void pm_mlx_state_copy(pm_backend *backend, pm_state *to, const pm_state *from)
{
    (void)backend;
    to->value = from->value;
    to->written = from->written;
}

void pm_mlx_state_free(pm_backend *backend, pm_state *state)
{
    if (!state)
        return;
    std::erase(((pm_mlx *)backend)->states, state);
    delete state;
}

int pm_mlx_state_export(pm_backend *backend, const pm_state *state, float *out, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int status = pm_mlx_evaluate(mlx, {}, err);
        if (status == PM_OK)
            pm_mlx_copy_out(state->value, out);
        return status;
    });
}

int pm_mlx_state_import(pm_backend *backend, pm_state *state, const float *data, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        pm_mlx_state_set(state, mx::array(data, {(int)state->count}, mx::float32));
        return (int)PM_OK;
    });
}
