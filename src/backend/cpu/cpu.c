/* The CPU backend: what the processor can do, tensors, scratch memory, and the table of operations. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

enum { ALIGN = 64 };

/* ---- instruction sets ---- */

static const char *const simd_names[] = {[PM_SIMD_BEST] = "best",
                                         [PM_SIMD_SCALAR] = "scalar",
                                         [PM_SIMD_AVX2] = "avx2",
                                         [PM_SIMD_AVX512] = "avx512",
                                         [PM_SIMD_AMX] = "amx",
                                         [PM_SIMD_NEON] = "neon",
                                         [PM_SIMD_DOT] = "neon, dot products",
                                         [PM_SIMD_I8MM] = "neon, i8mm"};

#if defined(__x86_64__)
static bool have_avx2(void)
{
    unsigned a, b, c = 0, d;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           c & bit_F16C;
}

static bool have_avx512(void)
{
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

/* Whether there are tiles of bytes, the system keeps them, and lets this process use them, which it wants to be asked
 * for (Linux, Documentation/arch/x86/xstate.rst). */
static bool have_amx(void)
{
    enum { OSXSAVE = 1 << 27 /* of leaf 1 */, AMX = 3 << 24 /* of leaf 7: amx-tile, amx-int8 */ };
    enum { TILES = 3 << 17 /* of XCR0: their shapes and their data */, DATA = 18, ASK_FOR_STATE = 0x1023 };
    unsigned a, b, c, d, low, high;
    if (!have_avx512() || !__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & AMX) != AMX)
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & TILES) != TILES)
        return false;
#if defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, ASK_FOR_STATE, DATA) == 0;
#else
    return false;
#endif
}
#endif

static bool simd_available(pm_simd simd)
{
    if (simd == PM_SIMD_SCALAR)
        return true;
#if defined(__x86_64__)
    return (simd == PM_SIMD_AVX2 && have_avx2()) || (simd == PM_SIMD_AVX512 && have_avx512()) ||
           (simd == PM_SIMD_AMX && have_amx());
#elif defined(__aarch64__)
    bool dot = false, i8mm = false; /* elsewhere than on Linux nobody has looked yet */
#if defined(__linux__)
    dot = getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
    i8mm = dot && getauxval(AT_HWCAP2) & HWCAP2_I8MM;
#endif
    return simd == PM_SIMD_NEON || (simd == PM_SIMD_DOT && dot) || (simd == PM_SIMD_I8MM && i8mm);
#else
    return false;
#endif
}

static pm_simd simd_best(void)
{
    pm_simd simd = PM_SIMD_I8MM;
    while (!simd_available(simd))
        simd--;
    return simd;
}

const struct pm_matrix_kernels *pm_matrix_kernels_for(pm_simd simd)
{
#if defined(__x86_64__)
    if (simd == PM_SIMD_AMX)
        return &pm_matrix_amx;
    if (simd == PM_SIMD_AVX512)
        return &pm_matrix_avx512;
    if (simd == PM_SIMD_AVX2)
        return &pm_matrix_avx2;
#elif defined(__aarch64__)
    if (simd >= PM_SIMD_NEON)
        return simd == PM_SIMD_I8MM ? &pm_matrix_i8mm : simd == PM_SIMD_DOT ? &pm_matrix_dot : &pm_matrix_neon;
#endif
    (void)simd;
    return &pm_matrix_scalar;
}

/* ---- memory ---- */

static void *aligned(size_t bytes)
{
    size_t room;
    return pm_add(bytes, ALIGN, &room) ? aligned_alloc(ALIGN, room / ALIGN * ALIGN) : NULL;
}

void *pm_cpu_scratch(pm_cpu *cpu, pm_scratch slot, size_t bytes)
{
    if (cpu->scratch[slot].bytes < bytes || !cpu->scratch[slot].data) {
        free(cpu->scratch[slot].data);
        cpu->scratch[slot].data = aligned(bytes);
        cpu->scratch[slot].bytes = cpu->scratch[slot].data ? bytes : 0;
    }
    return cpu->scratch[slot].data;
}

static int tensor_new(pm_backend *backend, int64_t rows, int64_t cols, const float *init, pm_tensor **out,
                      pm_error *err)
{
    (void)backend;
    size_t bytes;
    if (rows < 0 || cols < 0 || !pm_mul((size_t)rows, (size_t)cols, &bytes) || !pm_mul(bytes, sizeof(float), &bytes))
        return pm_fail_memory(err);
    pm_tensor *tensor = malloc(sizeof(*tensor));
    float *data = aligned(bytes);
    if (!tensor || !data) {
        free(tensor);
        free(data);
        return pm_fail_memory(err);
    }
    if (init && bytes)
        memcpy(data, init, bytes);
    else
        memset(data, 0, bytes);
    *tensor = (pm_tensor){rows, cols, data};
    *out = tensor;
    return PM_OK;
}

static void tensor_free(pm_backend *backend, pm_tensor *tensor)
{
    (void)backend;
    if (tensor)
        free(tensor->data);
    free(tensor);
}

static int tensor_read(pm_backend *backend, const pm_tensor *tensor, int64_t first_row, int64_t rows, float *out,
                       pm_error *err)
{
    (void)backend;
    if (first_row < 0 || rows < 0 || first_row > tensor->rows || rows > tensor->rows - first_row)
        return pm_fail(err, PM_ERR_INVALID, "rows %lld to %lld asked of a tensor of %lld", (long long)first_row,
                       (long long)first_row + rows, (long long)tensor->rows);
    if (rows && tensor->cols)
        memcpy(out, tensor->data + first_row * tensor->cols, (size_t)(rows * tensor->cols) * sizeof(float));
    return PM_OK;
}

/* ---- weights ---- */

static const char *const format_names[PM_FORMATS] = {"f32", "f16", "bf16", "affine", "mxfp4", "mxfp8", "nvfp4", "fp8"};

/* The group and the type of scales of the formats that allow one. */
static const struct {
    int group;
    pm_scale_type scale;
} fixed[PM_FORMATS] = {[PM_FORMAT_MXFP4] = {32, PM_SCALE_E8M0},
                       [PM_FORMAT_MXFP8] = {32, PM_SCALE_E8M0},
                       [PM_FORMAT_NVFP4] = {16, PM_SCALE_E4M3},
                       [PM_FORMAT_FP8] = {0, PM_SCALE_F32}};

static int check_affine(const pm_cpu *cpu, const pm_weight *w, pm_error *err)
{
    if (w->bits < 0 || w->bits > PM_MAX_BITS || !cpu->matrix->quantised[cpu->precision].affine[w->bits].multiply)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "affine weights of %d bits are not supported (2, 3, 4, 5, 6, 8 are)",
                       w->bits);
    if (w->group != 32 && w->group != 64 && w->group != 128)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "affine weights in groups of %d are not supported (32, 64, 128 are)",
                       w->group);
    if ((unsigned)w->scale_type > PM_SCALE_F32 || !w->scales)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "affine weights need scales of bf16, f16 or f32");
    return PM_OK;
}

/* Nothing is copied: kernels read the file's own layout. */
static int weight_prepare(pm_backend *backend, pm_weight *weight, pm_error *err)
{
    const pm_weight *w = weight;
    if (w->out < 1 || w->in < 1)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "a matrix of %d by %d", w->out, w->in);
    if ((unsigned)w->format >= PM_FORMATS)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "weight format %d is not supported", (int)w->format);
    if (w->format < PM_FORMAT_AFFINE)
        return PM_OK;
    const char *name = format_names[w->format];
    int status = PM_OK, group = fixed[w->format].group;
    if (w->format == PM_FORMAT_AFFINE)
        status = check_affine((const pm_cpu *)backend, w, err);
    else if (w->scale_type != fixed[w->format].scale || !w->scales || w->biases)
        status = pm_fail(err, PM_ERR_UNSUPPORTED, "%s weights need scales of their own type and no biases", name);
    else if (group && w->group != group)
        status = pm_fail(err, PM_ERR_UNSUPPORTED, "%s weights in groups of %d are not supported (%d is)", name,
                         w->group, group);
    else if (w->format == PM_FORMAT_FP8 && (w->block[0] < 1 || w->block[1] < 1 || w->block_first < 0))
        status = pm_fail(err, PM_ERR_UNSUPPORTED, "fp8 weights in blocks of %d by %d", w->block[0], w->block[1]);
    if (status == PM_OK && w->format != PM_FORMAT_FP8 && w->in % w->group)
        status =
            pm_fail(err, PM_ERR_UNSUPPORTED, "%s weights %d wide are not whole groups of %d", name, w->in, w->group);
    return status;
}

/* ---- the backend ---- */

static void cpu_free(pm_backend *backend)
{
    pm_cpu *cpu = (pm_cpu *)backend;
    if (!cpu)
        return;
    for (int slot = 0; slot < PM_SCRATCHES; slot++)
        free(cpu->scratch[slot].data);
    pm_pool_free(cpu->pool);
    free(cpu);
}

static void describe(const pm_backend *backend, char *out, size_t size)
{
    const pm_cpu *cpu = (const pm_cpu *)backend;
    int threads = pm_pool_threads(cpu->pool);
    snprintf(out, size, "cpu (%s), %d thread%s", simd_names[cpu->simd], threads, threads == 1 ? "" : "s");
}

static const pm_backend_ops cpu_ops = {
    .name = "cpu",
    .free = cpu_free,
    .describe = describe,
    .weight_prepare = weight_prepare,
    .tensor_new = tensor_new,
    .tensor_free = tensor_free,
    .tensor_read = tensor_read,
    .rows_new = pm_cpu_rows_new,
    .rows_fork = pm_cpu_rows_fork,
    .rows_truncate = pm_cpu_rows_truncate,
    .rows_length = pm_cpu_rows_length,
    .rows_free = pm_cpu_rows_free,
    .rows_bytes = pm_cpu_rows_bytes,
    .held = pm_cpu_held,
    .rows_export = pm_cpu_rows_export,
    .rows_import = pm_cpu_rows_import,
    .state_new = pm_cpu_state_new,
    .state_zero = pm_cpu_state_zero,
    .state_copy = pm_cpu_state_copy,
    .state_free = pm_cpu_state_free,
    .state_export = pm_cpu_state_export,
    .state_import = pm_cpu_state_import,
    .indices_new = pm_cpu_indices_new,
    .indices_read = pm_cpu_indices_read,
    .indices_free = pm_cpu_indices_free,
    .embed = pm_cpu_embed,
    .linear = pm_cpu_linear,
    .attention = pm_cpu_attention,
    .heads = pm_cpu_heads,
    .sparse_index = pm_cpu_sparse_index,
    .latent_attention = pm_cpu_latent_attention,
    .gated_delta = pm_cpu_gated_delta,
    .short_conv = pm_cpu_short_conv,
    .mamba2 = pm_cpu_mamba2,
    .compress = pm_cpu_compress,
    .hyper_in = pm_cpu_hyper_in,
    .hyper_out = pm_cpu_hyper_out,
    .moe = pm_cpu_moe,
    .logits = pm_cpu_logits,
    .measure_read = pm_cpu_measure_read,
    .measure_peak = pm_cpu_measure_peak,
};

int pm_backend_cpu_new(pm_backend **out, int threads, pm_simd simd, pm_precision precision, pm_error *err)
{
    if (simd == PM_SIMD_BEST)
        simd = simd_best();
    if ((unsigned)simd > PM_SIMD_I8MM)
        return pm_fail(err, PM_ERR_INVALID, "there is no instruction set %d", (int)simd);
    if (!simd_available(simd))
        return pm_fail(err, PM_ERR_UNSUPPORTED, "this processor does not have the instruction set '%s'",
                       simd_names[simd]);
    pm_cpu *cpu = calloc(1, sizeof(*cpu));
    if (!cpu)
        return pm_fail_memory(err);
    cpu->base.ops = &cpu_ops;
    cpu->simd = simd;
    cpu->precision = precision;
    cpu->matrix = pm_matrix_kernels_for(simd);
    cpu->mixer = pm_mixer_kernels_for(simd);
    int status = pm_pool_new(&cpu->pool, threads ? threads : pm_pool_cores(), err);
    if (status == PM_OK)
        *out = &cpu->base;
    else
        cpu_free(&cpu->base);
    return status;
}
