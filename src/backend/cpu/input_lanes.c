/* Normalising rows of x, and what lies between matrices, eight lanes at a time. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/matrix.h"

void pm_rms_norm_lanes(const float *x, const float *w, float eps, int n, float *y)
{
    float r = pm_rsqrt(pm_dot_lanes(x, x, n) / (float)n + eps);
    pm_floats factor = pm_set8(r);
    int k = 0;
    for (; k + 8 <= n; k += 8)
        pm_store8(y + k, pm_mul8(pm_mul8(pm_load8(x + k), factor), pm_load8(w + k)));
    for (; k < n; k++)
        y[k] = x[k] * r * w[k];
}

void pm_swiglu_lanes(const float *gate, const float *up, float limit, int64_t n, float *y)
{
    pm_floats most = pm_set8(limit), least = pm_set8(-limit);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) { /* min and max give the second operand when one is NaN */
        pm_floats g = pm_min8(most, pm_load8(gate + i));
        pm_floats u = pm_max8(least, pm_min8(most, pm_load8(up + i)));
        pm_store8(y + i, pm_mul8(pm_silu8(g), u));
    }
    for (; i < n; i++)
        y[i] = pm_swiglu(gate[i], up[i], limit);
}

void pm_add_scaled_lanes(float *acc, const float *y, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        acc[i] = fmaf(factor, y[i], acc[i]);
}
