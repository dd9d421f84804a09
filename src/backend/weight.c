/* The size of weights. */
#include "backend/backend.h"

static const int element_bits[PM_FORMATS] = {
    [PM_FORMAT_F32] = 32,  [PM_FORMAT_F16] = 16,  [PM_FORMAT_BF16] = 16, [PM_FORMAT_AFFINE] = 0, /* in the weight */
    [PM_FORMAT_MXFP4] = 4, [PM_FORMAT_MXFP8] = 8, [PM_FORMAT_NVFP4] = 4, [PM_FORMAT_FP8] = 8};
static const size_t scale_bytes[] = {
    [PM_SCALE_BF16] = 2, [PM_SCALE_F16] = 2, [PM_SCALE_F32] = 4, [PM_SCALE_E8M0] = 1, [PM_SCALE_E4M3] = 1};

size_t pm_weight_row_bytes(const pm_weight *weight)
{
    int bits = element_bits[weight->format] ? element_bits[weight->format] : weight->bits;
    return (size_t)weight->in * (size_t)bits / 8;
}

size_t pm_weight_scale_bytes(const pm_weight *weight)
{
    int width = weight->format == PM_FORMAT_FP8 ? weight->block[1] : weight->group;
    if (weight->format <= PM_FORMAT_BF16)
        return 0;
    return (size_t)((weight->in + width - 1) / width) * scale_bytes[weight->scale_type];
}
