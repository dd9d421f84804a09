/* Which backend the options ask for. */
#include "backend/backend.h"

#ifdef PM_WITH_MLX
/* What is an option of the CPU backend is refused, not ignored. */
static int open_mlx(pm_backend **out, const pm_engine_options *options, pm_error *err)
{
    const char *option = options->threads                           ? "threads"
                         : options->simd != PM_SIMD_BEST            ? "simd"
                         : options->precision != PM_PRECISION_EXACT ? "precision fast"
                         : options->profile                         ? "profile (bench)"
                                                                    : NULL;
    if (option)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "the device mlx does not have the option %s", option);
    if (options->kv_type == PM_KV_Q8)
        return pm_fail(err, PM_ERR_UNSUPPORTED, "the device mlx has no q8 cache; kv_type f16 and f32 it has");
    return pm_backend_mlx_new(out, options->device == PM_DEVICE_MLX_GPU, err);
}
#else
static int open_mlx(pm_backend **out, const pm_engine_options *options, pm_error *err)
{
    (void)out, (void)options;
    return pm_fail(err, PM_ERR_UNSUPPORTED,
                   "the device mlx is not in this build; `make mlx` builds one that has it, in build/mlx");
}
#endif

int pm_backend_open(pm_backend **out, const pm_engine_options *options, pm_error *err)
{
    bool mlx = options->device == PM_DEVICE_MLX || options->device == PM_DEVICE_MLX_GPU;
    return mlx ? open_mlx(out, options, err)
               : pm_backend_cpu_new(out, options->threads, options->simd, options->precision, err);
}
