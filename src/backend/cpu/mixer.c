#include "backend/cpu/mixer.h"

static float scalar_dot(const float *a, const float *b, int n)
{
    return pm_dot(a, b, n);
}

static void scalar_delta_gates(float A_log, float a, float b, float *decay, float *beta)
{
    pm_delta_gates(A_log, a, b, decay, beta);
}

static void scalar_sqrt_softplus(const float *x, float *y, int n)
{
    pm_sqrt_softplus(x, y, n);
}

static void scalar_ssm_gates(float A_log, float raw, float min, float max, float *decay, float *dt)
{
    pm_ssm_gates(A_log, raw, min, max, decay, dt);
}

const pm_mixer_kernels pm_mixer_scalar = {
    .columns = 64,
    .dot = scalar_dot,
    .widen = pm_scalar_widen,
    .narrow = pm_scalar_narrow,
    .pack = pm_scalar_pack,
    .unpack = pm_scalar_unpack,
    .scores = pm_scalar_scores,
    .softmax = pm_scalar_softmax,
    .mix = pm_scalar_mix,
    .gate = pm_scalar_gate,
    .sqrt_softplus = scalar_sqrt_softplus,
    .add_positive = pm_scalar_add_positive,
    .conv = pm_scalar_conv,
    .delta_gates = scalar_delta_gates,
    .delta = pm_scalar_delta,
    .ssm_gates = scalar_ssm_gates,
    .ssm = pm_scalar_ssm,
    .gated_norm = pm_scalar_gated_norm,
    .compress = pm_scalar_compress,
};

/* The level must be one that the processor has. */
const pm_mixer_kernels *pm_mixer_kernels_for(pm_simd simd)
{
#if defined(__x86_64__)
    if (simd >= PM_SIMD_AVX512)
        return &pm_mixer_avx512;
    if (simd == PM_SIMD_AVX2)
        return &pm_mixer_lanes;
#elif defined(__aarch64__)
    if (simd >= PM_SIMD_NEON)
        return &pm_mixer_lanes;
#endif
    (void)simd;
    return &pm_mixer_scalar;
}
