#include "backend/cpu/math_lanes.h"
#include "backend/cpu/mixer.h"

void pm_lanes_sqrt_softplus(const float *x, float *y, int n)
{
    pm_sqrt_softplus(x, y, n);
}

const pm_mixer_kernels pm_mixer_lanes = {
    .columns = 64,
    .dot = pm_dot_lanes,
    .widen = pm_lanes_widen,
    .narrow = pm_lanes_narrow,
    .pack = pm_lanes_pack,
    .unpack = pm_lanes_unpack,
    .scores = pm_lanes_scores,
    .softmax = pm_lanes_softmax,
    .mix = pm_lanes_mix,
    .gate = pm_lanes_gate,
    .sqrt_softplus = pm_lanes_sqrt_softplus,
    .add_positive = pm_lanes_add_positive,
    .conv = pm_lanes_conv,
    .delta_gates = pm_lanes_delta_gates,
    .delta = pm_lanes_delta,
    .ssm_gates = pm_lanes_ssm_gates,
    .ssm = pm_lanes_ssm,
    .gated_norm = pm_lanes_gated_norm,
    .compress = pm_lanes_compress,
};
