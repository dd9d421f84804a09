/* The MLX backend: device, errors, evaluation, tensors, and the table of operations. */
#include "backend/mlx/mlx.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <new>

#include <mlx/device.h>
#include <mlx/memory.h>
#include <mlx/version.h>

enum { STEPS_PER_CLEAR = 256 }; /* buffers that MLX keeps for later are given back so often */

/* ---- errors ---- */

int pm_mlx_caught(pm_error *err)
{
    std::string message;
    try {
        throw;
    } catch (const std::bad_alloc &) {
        return pm_fail_memory(err);
    } catch (const std::exception &e) {
        message = e.what();
    } catch (...) {
        message = "an unknown exception";
    }
    std::replace(message.begin(), message.end(), '\n', ' ');
    return pm_fail(err, message.find("alloc") == std::string::npos ? PM_ERR_UNSUPPORTED : PM_ERR_MEMORY, "MLX: %s",
                   message.c_str());
}

/* ---- evaluation ---- */

void pm_mlx_enter(const pm_mlx *mlx)
{
    if (!(mx::default_device() == mlx->stream.device))
        mx::set_default_device(mlx->stream.device);
    mx::set_default_stream(mlx->stream);
}

/* Refuses what a cache cannot hold. */
static int judge(const std::vector<pm_mlx_check> &checks, pm_error *err)
{
    for (const pm_mlx_check &check : checks) {
        float largest = check.largest.item<float>();
        if (!std::isfinite(largest))
            return pm_fail(err, PM_ERR_NUMERIC, "layer %d: %s (%.3g) is not finite", check.layer, check.what,
                           (double)largest);
        if (largest >= check.end)
            return pm_fail(err, PM_ERR_NUMERIC, "layer %d: %s (%.3g) does not fit the %s cache; use --kv-type f32",
                           check.layer, check.what, (double)largest, check.type);
    }
    return PM_OK;
}

int pm_mlx_evaluate(pm_mlx *mlx, std::vector<mx::array> arrays, pm_error *err)
{
    std::vector<pm_mlx_check> checks;
    checks.swap(mlx->checks);
    for (const pm_mlx_check &check : checks)
        arrays.push_back(check.largest);
    for (pm_rows *rows : mlx->rows)
        if (rows->written && rows->value)
            arrays.push_back(*rows->value);
    for (pm_state *state : mlx->states)
        if (state->written)
            arrays.push_back(state->value);
    try {
        mx::eval(arrays);
    } catch (const std::exception &e) {
        mlx->failure = e.what();
        throw;
    }
    for (pm_rows *rows : mlx->rows)
        rows->written = false;
    for (pm_state *state : mlx->states)
        state->written = false;
    if (++mlx->steps % STEPS_PER_CLEAR == 0)
        mx::clear_cache();
    return judge(checks, err);
}

void pm_mlx_copy_out(const mx::array &array, void *out)
{
    mx::array whole = mx::contiguous(array);
    mx::eval(whole);
    if (whole.nbytes())
        std::memcpy(out, whole.data<char>(), whole.nbytes());
}

/* ---- parts of arrays ---- */

/* Elements [first, first + n) of an axis. */
static mx::array slice_of(const mx::array &array, int axis, int64_t first, int64_t n)
{
    mx::Shape from(array.ndim(), 0), to = array.shape();
    from[(size_t)axis] = (int)first;
    to[(size_t)axis] = (int)(first + n);
    return first == 0 && n == array.shape(axis) ? array : mx::slice(array, from, to);
}

mx::array pm_mlx_part(const mx::array &array, int64_t first, int64_t n)
{
    return slice_of(array, 0, first, n);
}

mx::array pm_mlx_columns(const mx::array &array, int64_t first, int64_t n)
{
    return slice_of(array, (int)array.ndim() - 1, first, n);
}

mx::array pm_mlx_concatenate(const std::vector<mx::array> &parts, int axis)
{
    return parts.size() == 1 ? parts[0] : mx::concatenate(parts, axis);
}

/* ---- tensors ---- */

static int tensor_new(pm_backend *backend, int64_t rows, int64_t cols, const float *init, pm_tensor **out,
                      pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *) {
        if (rows < 0 || cols < 0 || rows > INT32_MAX || cols > INT32_MAX)
            return pm_fail_memory(err);
        mx::Shape shape = {(int)rows, (int)cols};
        *out = new pm_tensor{rows, cols, init ? mx::array(init, shape, mx::float32) : mx::zeros(shape)};
        return (int)PM_OK;
    });
}

static void tensor_free(pm_backend *backend, pm_tensor *tensor)
{
    (void)backend;
    delete tensor;
}

/* An operation leaves the rows of its step alone; there are no others. */
static int tensor_read(pm_backend *backend, const pm_tensor *tensor, int64_t first_row, int64_t rows, float *out,
                       pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        int64_t have = tensor->value.shape(0);
        if (first_row < 0 || rows < 0 || first_row > have || rows > have - first_row)
            return pm_fail(err, PM_ERR_INVALID, "rows %lld to %lld asked of a tensor of %lld", (long long)first_row,
                           (long long)first_row + rows, (long long)have);
        int status = pm_mlx_evaluate(mlx, {tensor->value}, err);
        if (status == PM_OK)
            pm_mlx_copy_out(pm_mlx_part(tensor->value, first_row, rows), out);
        return status;
    });
}

/* ---- the backend ---- */

static void mlx_free(pm_backend *backend)
{
    pm_mlx *mlx = (pm_mlx *)backend;
    if (!mlx)
        return;
    for (pm_mlx_matrices *matrices : mlx->matrices)
        delete matrices;
    delete mlx;
}

static void describe(const pm_backend *backend, char *out, size_t size)
{
    std::snprintf(out, size, "mlx %s (%s)", mx::version(), ((const pm_mlx *)backend)->gpu ? "gpu" : "cpu");
}

static const pm_backend_ops mlx_ops = {
    .name = "mlx",
    .free = mlx_free,
    .describe = describe,
    .weight_prepare = pm_mlx_weight_prepare,
    .weights_load = pm_mlx_weights_load,
    .tensor_new = tensor_new,
    .tensor_free = tensor_free,
    .tensor_read = tensor_read,
    .rows_new = pm_mlx_rows_new,
    .rows_fork = pm_mlx_rows_fork,
    .rows_truncate = pm_mlx_rows_truncate,
    .rows_length = pm_mlx_rows_length,
    .rows_free = pm_mlx_rows_free,
    .rows_bytes = pm_mlx_rows_bytes,
    .held = pm_mlx_held,
    .rows_export = pm_mlx_rows_export,
    .rows_import = pm_mlx_rows_import,
    .state_new = pm_mlx_state_new,
    .state_zero = pm_mlx_state_zero,
    .state_copy = pm_mlx_state_copy,
    .state_free = pm_mlx_state_free,
    .state_export = pm_mlx_state_export,
    .state_import = pm_mlx_state_import,
    .indices_new = pm_mlx_indices_new,
    .indices_read = pm_mlx_indices_read,
    .indices_free = pm_mlx_indices_free,
    .embed = pm_mlx_embed,
    .linear = pm_mlx_linear,
    .attention = pm_mlx_attention,
    .heads = pm_mlx_heads,
    .sparse_index = pm_mlx_sparse_index,
    .latent_attention = pm_mlx_latent_attention,
    .gated_delta = pm_mlx_gated_delta,
    .short_conv = pm_mlx_short_conv,
    .mamba2 = pm_mlx_mamba2,
    .compress = pm_mlx_compress,
    .hyper_in = pm_mlx_hyper_in,
    .hyper_out = pm_mlx_hyper_out,
    .moe = pm_mlx_moe,
    .logits = pm_mlx_logits,
    .measure_read = nullptr,
    .measure_peak = nullptr,
};

/* Lets MLX keep as much memory resident as the device recommends; devices that recommend nothing need nothing. */
static void set_limits(mx::Device device)
{
    const auto &info = mx::device_info(device);
    auto recommended = info.find("max_recommended_working_set_size");
    if (recommended != info.end() && std::holds_alternative<size_t>(recommended->second))
        mx::set_wired_limit(std::get<size_t>(recommended->second));
}

int pm_backend_mlx_new(pm_backend **out, bool gpu, pm_error *err)
{
    try {
        mx::Device device(gpu ? mx::Device::gpu : mx::Device::cpu);
        if (!mx::is_available(device))
            return pm_fail(err, PM_ERR_UNSUPPORTED, "MLX %s finds no %s here", mx::version(), gpu ? "GPU" : "CPU");
        if (gpu)
            set_limits(device);
        pm_mlx *mlx = new pm_mlx{{&mlx_ops}, mx::new_thread_unsafe_stream(device), gpu, {}, {}, {}, {}, {}, {}, 0};
        *out = &mlx->base;
        return PM_OK;
    } catch (...) {
        return pm_mlx_caught(err);
    }
}
