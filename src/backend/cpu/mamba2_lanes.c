/* The scalar kernels of mamba2.c eight lanes at a time, with the same bits. */
#include "backend/cpu/math_lanes.h"
#include "backend/cpu/mixer.h"

void pm_lanes_ssm_gates(float A_log, float raw, float min, float max, float *decay, float *dt)
{
    pm_ssm_gates(A_log, raw, min, max, decay, dt);
}

#define LOAD(p)     (vectors == 1 ? pm_load_part8(p, mask) : pm_load8(p))
#define STORE(p, x) (vectors == 1 ? pm_store_part8(p, mask, x) : pm_store8(p, x))

/* Columns [d, d + 8 * vectors) of the state over all tokens. With one vector, `mask` says which of them exist. */
static inline __attribute__((always_inline)) void ssm_strip(const pm_ssm_args *args, int d, const int vectors,
                                                            pm_mask mask)
{
    size_t states = (size_t)args->state_size, dim = (size_t)args->head_dim;
    const pm_floats D = pm_set8(args->D);
    for (size_t t = 0; t < (size_t)args->n; t++) {
        const float *b = args->b + t * states, *c = args->c + t * states, *x = args->x + t * dim + d;
        const pm_floats decay = pm_set8(args->decay[t]), dt = pm_set8(args->dt[t]);
        pm_floats input[4], read[4];
        for (int j = 0; j < vectors; j++) {
            input[j] = pm_mul8(dt, LOAD(x + 8 * j));
            read[j] = pm_zero8();
        }
        float *s = args->state + d;
        for (size_t i = 0; i < states; i++, s += dim) {
            pm_floats in = pm_set8(b[i]), out = pm_set8(c[i]);
            for (int j = 0; j < vectors; j++) {
                pm_floats updated = pm_fma8(in, input[j], pm_mul8(decay, LOAD(s + 8 * j)));
                STORE(s + 8 * j, updated);
                read[j] = pm_fma8(out, updated, read[j]);
            }
        }
        for (int j = 0; j < vectors; j++)
            STORE(args->out + t * dim + d + 8 * j, pm_fma8(D, LOAD(x + 8 * j), read[j]));
    }
}

#undef LOAD
#undef STORE

void pm_lanes_ssm(const pm_ssm_args *args)
{
    const pm_mask all = pm_mask8(8);
    int d = 0;
    for (; d + 32 <= args->head_dim; d += 32)
        ssm_strip(args, d, 4, all);
    for (; d < args->head_dim; d += 8)
        ssm_strip(args, d, 1, pm_mask8(args->head_dim - d));
}
