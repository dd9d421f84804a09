#include "backend/cpu/math_avx2.h"
#include "backend/cpu/mixer.h"

void pm_avx2_sqrt_softplus(const float *x, float *y, int n)
{
    pm_sqrt_softplus(x, y, n);
}

const pm_mixer_kernels pm_mixer_avx2 = {
    .columns = 64,
    .dot = pm_dot_avx2,
    .widen = pm_avx2_widen,
    .narrow = pm_avx2_narrow,
    .pack = pm_avx2_pack,
    .unpack = pm_avx2_unpack,
    .scores = pm_avx2_scores,
    .softmax = pm_avx2_softmax,
    .mix = pm_avx2_mix,
    .gate = pm_avx2_gate,
    .sqrt_softplus = pm_avx2_sqrt_softplus,
    .add_positive = pm_avx2_add_positive,
    .conv = pm_avx2_conv,
    .delta_gates = pm_avx2_delta_gates,
    .delta = pm_avx2_delta,
    .ssm_gates = pm_avx2_ssm_gates,
    .ssm = pm_avx2_ssm,
    .gated_norm = pm_avx2_gated_norm,
    .compress = pm_avx2_compress,
};
