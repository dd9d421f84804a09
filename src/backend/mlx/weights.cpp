/* Weights as MLX takes them. They are copied once, at load, and evaluated there: MLX wants aligned memory, which a
 * mapped file does not promise. Packed formats stay packed; scales and biases of affine weights become f32, as the
 * activations are. */
#include "backend/mlx/mlx.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

static const char *const format_names[PM_FORMATS] = {"f32", "f16", "bf16", "affine", "mxfp4", "mxfp8", "nvfp4", "fp8"};

static const pm_mlx_matrices &matrices_of(const pm_weight *weight)
{
    return *(const pm_mlx_matrices *)weight->device;
}

/* ---- loading ---- */

/* What may be read of a weight. */
static int check(const pm_weight *w, pm_error *err)
{
    if (w->out < 1 || w->in < 1)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "a matrix of %d by %d", w->out, w->in);
    if ((unsigned)w->format >= PM_FORMATS)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "weight format %d is not supported", (int)w->format);
    const char *name = format_names[w->format];
    if (w->format == PM_FORMAT_AFFINE &&
        (w->bits < 2 || w->bits == 7 || w->bits > 8 || (w->group != 32 && w->group != 64 && w->group != 128)))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "affine weights of %d bits in groups of %d are not supported", w->bits,
                       w->group);
    if (w->format >= PM_FORMAT_AFFINE && !w->scales)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s weights need scales", name);
    if (w->format == PM_FORMAT_FP8 && (w->block[0] < 1 || w->block[1] < 1 || w->block_first < 0))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "fp8 weights in blocks of %d by %d", w->block[0], w->block[1]);
    if (w->format >= PM_FORMAT_AFFINE && w->format != PM_FORMAT_FP8 && (w->group < 1 || w->in % w->group))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "%s weights %d wide are not whole groups of %d", name, w->in, w->group);
    return PM_OK;
}

static bool alike(const pm_weight *a, const pm_weight *b)
{
    return a->format == b->format && a->scale_type == b->scale_type && a->bits == b->bits && a->group == b->group &&
           a->out == b->out && a->in == b->in && !a->biases == !b->biases && !a->bias == !b->bias &&
           a->block[0] == b->block[0] && a->block[1] == b->block[1] && a->block_first == b->block_first;
}

/* The same part of all n weights, `bytes` each, one after the other: [n, rows, cols]. MLX takes the memory over where
 * it can, which on Apple GPUs is where pages are whole; otherwise it copies. */
template <typename Part>
static mx::array stacked(const pm_weight *w, int n, size_t bytes, int rows, int cols, mx::Dtype type, Part part)
{
    const size_t page = 16384;
    size_t all;
    if (!pm_mul(bytes, (size_t)n, &all) || !pm_add(all, page, &all))
        throw std::bad_alloc();
    char *memory = (char *)std::aligned_alloc(page, all / page * page);
    if (!memory)
        throw std::bad_alloc();
    for (int i = 0; i < n; i++)
        std::memcpy(memory + (size_t)i * bytes, part(w[i]), bytes);
    return mx::array(memory, n == 1 ? mx::Shape{rows, cols} : mx::Shape{n, rows, cols}, type, std::free);
}

static mx::Dtype dtype_of(pm_scale_type type)
{
    static const mx::Dtype types[] = {mx::bfloat16, mx::float16, mx::float32, mx::uint8, mx::uint8};
    return types[type];
}

/* Rows of blocks that the scales of an FP8 matrix have. */
static int block_rows(const pm_weight *w)
{
    return (int)(((int64_t)w->out + w->block_first + w->block[0] - 1) / w->block[0]);
}

static mx::array load_data(const pm_weight *w, int n)
{
    static const mx::Dtype floats[] = {mx::float32, mx::float16, mx::bfloat16};
    size_t row = pm_weight_row_bytes(w);
    bool packed = w->format >= PM_FORMAT_AFFINE && w->format != PM_FORMAT_FP8;
    mx::Dtype type = packed ? mx::uint32 : w->format == PM_FORMAT_FP8 ? mx::uint8 : floats[w->format];
    return stacked(w, n, row * (size_t)w->out, w->out, (int)(row / mx::size_of(type)), type,
                   [](const pm_weight &one) { return one.data; });
}

static void load_scales(const pm_weight *w, int n, pm_mlx_matrices *m)
{
    size_t row = pm_weight_scale_bytes(w);
    mx::Dtype type = dtype_of(w->scale_type);
    int rows = w->format == PM_FORMAT_FP8 ? block_rows(w) : w->out;
    auto load = [&](const void *pm_weight::*part) {
        mx::array values = stacked(w, n, row * (size_t)rows, rows, (int)(row / mx::size_of(type)), type,
                                   [&](const pm_weight &one) { return one.*part; });
        return type == mx::uint8 ? values : mx::astype(values, mx::float32);
    };
    m->scales = load(&pm_weight::scales);
    if (w->format != PM_FORMAT_AFFINE)
        return;
    if (w->biases)
        m->biases = load(&pm_weight::biases);
    else
        m->biases = mx::multiply(*m->scales, mx::array(-(float)(1 << (w->bits - 1))));
}

static pm_mlx_matrices *load(const pm_weight *w, int n)
{
    auto m = std::make_unique<pm_mlx_matrices>(pm_mlx_matrices{*w, n, "", load_data(w, n), {}, {}, {}, {}});
    bool packed = w->format >= PM_FORMAT_AFFINE && w->format != PM_FORMAT_FP8;
    if (w->format >= PM_FORMAT_AFFINE)
        load_scales(w, n, m.get());
    if (packed)
        m->mode = format_names[w->format];
    if (packed && w->format != PM_FORMAT_AFFINE)
        m->like.bits = (int)(pm_weight_row_bytes(w) * 8 / (size_t)w->in);
    if (w->format == PM_FORMAT_NVFP4) {
        std::vector<float> globals;
        for (int i = 0; i < n; i++)
            globals.push_back(w[i].global);
        m->globals = mx::array(globals.data(), {n}, mx::float32);
    }
    if (w->bias)
        m->bias = stacked(w, n, (size_t)w->out * sizeof(float), 1, w->out, mx::float32,
                          [](const pm_weight &one) { return (const void *)one.bias; });
    std::vector<mx::array> all = {m->data};
    for (const auto *part : {&m->scales, &m->biases, &m->globals, &m->bias})
        if (*part)
            all.push_back(**part);
    mx::eval(all);
    return m.release();
}

int pm_mlx_weight_prepare(pm_backend *backend, pm_weight *weight, pm_error *err)
{
    (void)backend;
    return check(weight, err);
}

int pm_mlx_weights_load(pm_backend *backend, pm_weight *weights, int n, pm_error *err)
{
    return pm_mlx_guard(backend, err, [&](pm_mlx *mlx) {
        for (int i = 1; i < n; i++)
            if (!alike(&weights[0], &weights[i]))
                return pm_fail(err, PM_ERR_UNSUPPORTED,
                               "matrix %d of its module has another format than the first, which MLX cannot mix", i);
        mlx->matrices.reserve(mlx->matrices.size() + 1);
        mlx->matrices.push_back(load(weights, n));
        for (int i = 0; i < n; i++)
            weights[i].device = mlx->matrices.back();
        return (int)PM_OK;
    });
}

/* ---- products ---- */

/* FP8 as floats: `data` [..., out, in] e4m3, `scales` [..., block rows, block columns]. */
static mx::array widen_fp8(const pm_weight *w, const mx::array &data, const mx::array &scales)
{
    auto spread = [](const mx::array &s, int n, int first, int block, int axis) {
        std::vector<int> blocks((size_t)n);
        for (int i = 0; i < n; i++)
            blocks[(size_t)i] = (int)(((int64_t)i + first) / block);
        return mx::take(s, mx::array(blocks.data(), {n}, mx::int32), axis);
    };
    mx::array by_row = spread(scales, w->out, w->block_first, w->block[0], (int)scales.ndim() - 2);
    mx::array by_element = spread(by_row, w->in, 0, w->block[1], (int)scales.ndim() - 1);
    return mx::multiply(mx::from_fp8(data, mx::float32), by_element);
}

/* Float matrices as f32: [..., out, in], all or those of ids. */
static mx::array floats_of(const pm_mlx_matrices &m, const std::optional<mx::array> &ids)
{
    mx::array data = ids ? mx::take(m.data, *ids, 0) : m.data;
    if (m.like.format != PM_FORMAT_FP8)
        return mx::astype(data, mx::float32);
    return widen_fp8(&m.like, data, ids ? mx::take(*m.scales, *ids, 0) : *m.scales);
}

mx::array pm_mlx_multiply(const pm_weight *weight, const mx::array &x)
{
    const pm_mlx_matrices &m = matrices_of(weight);
    mx::array y = m.mode.empty()
                      ? mx::matmul(x, mx::swapaxes(floats_of(m, {}), -1, -2))
                      : mx::quantized_matmul(x, m.data, *m.scales, m.biases, true, m.like.group, m.like.bits, m.mode);
    if (m.globals)
        y = mx::multiply(y, *m.globals);
    return m.bias ? mx::add(y, mx::reshape(*m.bias, {m.like.out})) : y;
}

/* [n, ...] also where there is one matrix. */
static mx::array as_stack(const pm_mlx_matrices &m, const mx::array &part)
{
    return m.n == 1 ? mx::expand_dims(part, 0) : part;
}

mx::array pm_mlx_multiply_chosen(const pm_weight *stack, const mx::array &x, const mx::array &ids, bool transposed,
                                 bool sorted)
{
    const pm_mlx_matrices &m = matrices_of(stack);
    std::optional<mx::array> biases, y;
    if (m.biases)
        biases = as_stack(m, *m.biases);
    if (!m.mode.empty()) {
        y = mx::gather_qmm(x, as_stack(m, m.data), as_stack(m, *m.scales), biases, std::nullopt, ids, !transposed,
                           m.like.group, m.like.bits, m.mode, std::nullopt, sorted);
    } else {
        /* Where few are chosen only they become f32. */
        bool few = ids.size() < (size_t)m.n || m.n == 1;
        mx::array w = m.n == 1 ? mx::expand_dims(floats_of(m, {}), 0) : few ? floats_of(m, ids) : floats_of(m, {});
        if (!transposed)
            w = mx::swapaxes(w, -1, -2);
        y = few ? mx::matmul(x, w) : mx::gather_mm(x, w, std::nullopt, ids, sorted);
    }
    if (m.globals)
        y = mx::multiply(*y, mx::reshape(mx::take(*m.globals, ids, 0), {-1, 1, 1}));
    if (m.bias && !transposed)
        y = mx::add(*y, mx::take(mx::reshape(*m.bias, {m.n, 1, m.like.out}), ids, 0));
    return *y;
}

mx::array pm_mlx_look_up(const pm_weight *weight, const mx::array &ids)
{
    const pm_mlx_matrices &m = matrices_of(weight);
    if (m.mode.empty() && m.like.format != PM_FORMAT_FP8)
        return mx::astype(mx::take(m.data, ids, 0), mx::float32);
    if (m.mode.empty())
        return mx::take(floats_of(m, {}), ids, 0);
    std::optional<mx::array> biases;
    if (m.biases)
        biases = mx::take(*m.biases, ids, 0);
    mx::array rows = mx::dequantize(mx::take(m.data, ids, 0), mx::take(*m.scales, ids, 0), biases, m.like.group,
                                    m.like.bits, m.mode, std::nullopt, mx::float32);
    return m.globals ? mx::multiply(rows, *m.globals) : rows;
}
