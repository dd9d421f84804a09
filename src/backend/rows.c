#include "backend/backend.h"

size_t pm_kv_bytes(pm_kv_type type, int width)
{
    size_t n = (size_t)width;
    switch (type) {
    case PM_KV_F16: return n * sizeof(uint16_t);
    case PM_KV_F32: return n * sizeof(float);
    case PM_KV_Q8: break;
    }
    return n + (n + PM_KV_GROUP - 1) / PM_KV_GROUP * sizeof(float);
}
