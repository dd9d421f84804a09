/* The size of weights. */
#include "backend/backend.h"

static const size_t element_bytes[PM_FORMATS] = {[PM_FORMAT_F32] = 4, [PM_FORMAT_F16] = 2, [PM_FORMAT_BF16] = 2};
static const size_t scale_bytes[] = {[PM_SCALE_BF16] = 2, [PM_SCALE_F16] = 2, [PM_SCALE_F32] = 4};

size_t pm_weight_row_bytes(const pm_weight *weight)
{
    if (weight->format == PM_FORMAT_AFFINE)
        return (size_t)weight->in * (size_t)weight->bits / 8;
    return (size_t)weight->in * element_bytes[weight->format];
}

size_t pm_weight_scale_bytes(const pm_weight *weight)
{
    if (weight->format != PM_FORMAT_AFFINE)
        return 0;
    return (size_t)(weight->in / weight->group) * scale_bytes[weight->scale_type];
}
