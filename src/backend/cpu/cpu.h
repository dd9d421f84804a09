/* The CPU backend's own: what its operations share.
 *
 * The scalar kernels define the bits; every other level equals them by memcmp. Sums of floats over k have 16 partial
 * sums (k mod 16, each a chain of fmaf in ascending k; a tail adds to the first ones), then the tree p[i] += p[i + 8],
 * + 4, + 2, + 1. */
#ifndef PM_CPU_H
#define PM_CPU_H

#include "backend/backend.h"
#include "base/pool.h"

struct pm_tensor {
    int64_t rows, cols;
    float *data; /* 64-byte aligned */
};

/* What scratch memory is for: an operation asks for its own slots, so that no two overlap. */
typedef enum pm_scratch {
    PM_SCRATCH_NORM,         /* normalised inputs */
    PM_SCRATCH_QUANT,        /* quantised inputs */
    PM_SCRATCH_ROUTE,        /* chosen experts and weights */
    PM_SCRATCH_HIDDEN,       /* experts' activations */
    PM_SCRATCH_HIDDEN_QUANT, /* those, quantised */
    PM_SCRATCH_EXPERTS,      /* experts' outputs */
    PM_SCRATCH_SHARED,       /* shared expert's activations and outputs */
    PM_SCRATCH_SHARED_QUANT, /* those activations, quantised */
    PM_SCRATCH_ATTEND,       /* per-worker attention */
    PM_SCRATCH_DELTA,        /* per-worker or per-token delta rule */
    PM_SCRATCH_SEPARATE,     /* interleaved inputs of the delta rule, separated */
    PM_SCRATCH_CONV,         /* per-worker short convolution */
    PM_SCRATCH_MAMBA,        /* per-worker state space */
    PM_SCRATCH_ROPE,         /* sines and cosines */
    PM_SCRATCH_INDEX,        /* scores of a sparse index */
    PM_SCRATCH_HEADS,        /* inputs of per-head matrices, or strips of them */
    PM_SCRATCH_COMPRESS,     /* rows while they are made */
    PM_SCRATCH_HYPER,        /* weights of streams */
    PM_SCRATCHES
} pm_scratch;

typedef struct pm_cpu {
    pm_backend base;
    pm_pool *pool;
    pm_simd simd; /* the level in force, never BEST */
    pm_precision precision;
    const struct pm_matrix_kernels *matrix; /* matrix.h */
    const struct pm_mixer_kernels *mixer;   /* mixer.h */
    uint64_t held;                          /* bytes of rows and states */
    struct {
        void *data;
        size_t bytes;
    } scratch[PM_SCRATCHES];
} pm_cpu;

/* At least `bytes` of 64-byte aligned memory, contents undefined, valid until the slot is asked for again. It grows to
 * the largest step seen and then allocates no more. NULL when out of memory. */
void *pm_cpu_scratch(pm_cpu *cpu, pm_scratch slot, size_t bytes);

/* ---- memory.c ---- */
int pm_cpu_rows_new(pm_backend *backend, const pm_rows_spec *spec, pm_kv_type type, pm_rows **out, pm_error *err);
int pm_cpu_rows_fork(pm_backend *backend, const pm_rows *rows, int64_t n, pm_rows **out, pm_error *err);
void pm_cpu_rows_truncate(pm_backend *backend, pm_rows *rows, int64_t n);
int64_t pm_cpu_rows_length(const pm_rows *rows);
void pm_cpu_rows_free(pm_backend *backend, pm_rows *rows);
uint64_t pm_cpu_rows_bytes(const pm_rows_spec *spec, pm_kv_type type, int64_t tokens);
uint64_t pm_cpu_held(const pm_backend *backend);
int pm_cpu_state_new(pm_backend *backend, const pm_state_spec *spec, pm_state **out, pm_error *err);
void pm_cpu_state_zero(pm_backend *backend, pm_state *state);
void pm_cpu_state_copy(pm_backend *backend, pm_state *to, const pm_state *from);
void pm_cpu_state_free(pm_backend *backend, pm_state *state);
int pm_cpu_state_export(pm_backend *backend, const pm_state *state, float *out, pm_error *err);
int pm_cpu_state_import(pm_backend *backend, pm_state *state, const float *data, pm_error *err);
int pm_cpu_rows_export(pm_backend *backend, const pm_rows *rows, int64_t first, int64_t n, void *out, pm_error *err);
int pm_cpu_rows_import(pm_backend *backend, pm_rows *rows, int64_t n, const void *data, pm_error *err);

/* ---- operations, one file each ---- */
int pm_cpu_embed(pm_backend *backend, const pm_batch *batch, const pm_embed_args *args, pm_error *err);
int pm_cpu_linear(pm_backend *backend, const pm_batch *batch, const pm_linear_args *args, pm_error *err);
int pm_cpu_attention(pm_backend *backend, const pm_batch *batch, const pm_attention_args *args, pm_error *err);
int pm_cpu_heads(pm_backend *backend, const pm_batch *batch, const pm_heads_args *args, pm_error *err);
int pm_cpu_indices_new(pm_backend *backend, int max_tokens, int top_k, pm_indices **out, pm_error *err);
int pm_cpu_indices_read(const pm_indices *indices, int token, int32_t *out);
void pm_cpu_indices_free(pm_backend *backend, pm_indices *indices);
int pm_cpu_sparse_index(pm_backend *backend, const pm_batch *batch, const pm_sparse_index_args *args, pm_error *err);
int pm_cpu_latent_attention(pm_backend *backend, const pm_batch *batch, const pm_latent_attention_args *args,
                            pm_error *err);
int pm_cpu_gated_delta(pm_backend *backend, const pm_batch *batch, const pm_gated_delta_args *args, pm_error *err);
int pm_cpu_short_conv(pm_backend *backend, const pm_batch *batch, const pm_short_conv_args *args, pm_error *err);
int pm_cpu_mamba2(pm_backend *backend, const pm_batch *batch, const pm_mamba2_args *args, pm_error *err);
int pm_cpu_compress(pm_backend *backend, const pm_batch *batch, const pm_compress_args *args, pm_error *err);
int pm_cpu_hyper_in(pm_backend *backend, const pm_batch *batch, const pm_hyper_in_args *args, pm_error *err);
int pm_cpu_hyper_out(pm_backend *backend, const pm_batch *batch, const pm_hyper_out_args *args, pm_error *err);
int pm_cpu_moe(pm_backend *backend, const pm_batch *batch, const pm_moe_args *args, pm_error *err);
int pm_cpu_logits(pm_backend *backend, const pm_batch *batch, const pm_logits_args *args, pm_error *err);

void pm_cpu_measure_read(pm_backend *backend, const pm_span *spans, size_t n);
void pm_cpu_measure_peak(pm_backend *backend, pm_peak *out);

/* The loops of measure.c for a level. Each returns something that depends on all it did, so that none of it is left
 * out. */
typedef struct pm_measure_kernels {
    uint64_t (*read)(const void *data, size_t bytes);
    uint64_t (*integers)(int rounds);
    uint64_t (*floats)(int rounds);
    double integer_ops[2], float_ops; /* of a round: multiply-adds times two, the former by pm_precision */
} pm_measure_kernels;

#if defined(__x86_64__)
extern const pm_measure_kernels pm_measure_avx2, pm_measure_avx512, pm_measure_amx;
uint64_t pm_measure_read_avx512(const void *data, size_t bytes);
uint64_t pm_measure_floats_avx512(int rounds);
enum { PM_AVX512_FLOAT_OPS = 2 * 16 * 12 /* 12 chains of vectors */ };
#elif defined(__aarch64__)
extern const pm_measure_kernels pm_measure_neon, pm_measure_dot, pm_measure_i8mm;
#endif

/* The tables of kernels for a level. */
const struct pm_matrix_kernels *pm_matrix_kernels_for(pm_simd simd);
const struct pm_mixer_kernels *pm_mixer_kernels_for(pm_simd simd);

#endif
