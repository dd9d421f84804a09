/* The costs of operations against numbers worked out by hand. */
#include "backend/cost.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const char some; /* what a pointer that only must not be NULL points to */

static pm_weight matrix(pm_format format, int out, int in)
{
    return (pm_weight){.format = format, .out = out, .in = in, .data = &some};
}

/* 4 bits, scales and biases in bf16. */
static pm_weight affine(int out, int in, int group)
{
    pm_weight w = matrix(PM_FORMAT_AFFINE, out, in);
    w.bits = 4;
    w.group = group;
    w.scale_type = PM_SCALE_BF16;
    w.scales = w.biases = &some;
    return w;
}

static const pm_tensor *a_tensor(void)
{
    return (const pm_tensor *)(const void *)&some;
}

static void check(pm_cost cost, uint64_t bytes, uint64_t integer_ops, uint64_t float_ops)
{
    assert_int_equal(cost.bytes, bytes);
    assert_int_equal(cost.integer_ops, integer_ops);
    assert_int_equal(cost.float_ops, float_ops);
}

static void embedding(void **state)
{
    (void)state;
    pm_weight w = affine(10, 64, 64);
    check(pm_cost_embed(&(pm_batch){.n_tokens = 3}, &(pm_embed_args){.weight = &w}), 3 * (32 + 2 + 2), 0, 0);
}

static void matrices(void **state)
{
    (void)state;
    float bias[5];
    pm_weight quantised = affine(3, 128, 64), plain = matrix(PM_FORMAT_BF16, 5, 128);
    plain.bias = bias;
    pm_linear_args args = {.n = 2, .w = (const pm_weight *[]){&quantised, &plain}};
    uint64_t bytes = 3 * (64 + 4 + 4) + 5 * (256 + 4);
    check(pm_cost_linear(&(pm_batch){.n_tokens = 7}, &args), bytes, 7 * 3 * 128 * 2, 7 * 5 * 128 * 2);
    args.norm = a_tensor();
    check(pm_cost_linear(&(pm_batch){.n_tokens = 1}, &args), bytes + 512, 3 * 128 * 2, 5 * 128 * 2);
}

/* The scales of a format are counted in its own type and number. */
static void formats(void **state)
{
    (void)state;
    const pm_weight *w[1];
    pm_linear_args args = {.n = 1, .w = w};
    pm_batch one = {.n_tokens = 1};
    pm_weight mx = matrix(PM_FORMAT_MXFP4, 3, 64), nv = matrix(PM_FORMAT_NVFP4, 3, 64);
    pm_weight mx8 = matrix(PM_FORMAT_MXFP8, 3, 64), fp8 = matrix(PM_FORMAT_FP8, 130, 200);
    mx.scales = mx8.scales = nv.scales = fp8.scales = &some;
    mx.scale_type = mx8.scale_type = PM_SCALE_E8M0;
    mx.group = mx8.group = 32;
    nv.scale_type = PM_SCALE_E4M3;
    nv.group = 16;
    fp8.scale_type = PM_SCALE_F32;
    fp8.block[0] = fp8.block[1] = 128;
    w[0] = &mx;
    check(pm_cost_linear(&one, &args), 3 * (32 + 2), 3 * 64 * 2, 0);
    w[0] = &nv;
    check(pm_cost_linear(&one, &args), 3 * (32 + 4), 3 * 64 * 2, 0);
    w[0] = &mx8;
    check(pm_cost_linear(&one, &args), 3 * (64 + 2), 0, 3 * 64 * 2);
    w[0] = &fp8; /* two by two blocks */
    check(pm_cost_linear(&one, &args), 130 * 200 + 4 * 4, 0, 130 * 200 * 2);
}

static void cached_rows(void **state)
{
    (void)state;
    const pm_segment segments[] = {{.first = 0, .n = 3, .pos = 0}, {.first = 3, .n = 1, .pos = 10}};
    pm_batch batch = {.n_tokens = 4, .n_segments = 2, .segments = segments};
    pm_attention_args args = {.heads = 4, .kv_heads = 2, .head_dim = 8};
    /* 3 rows and 11 rows of (key, value) x 2 heads x 8; 1 + 2 + 3 + 11 = 17 keys seen. */
    check(pm_cost_attention(&batch, &args, PM_KV_F16), 14 * 64, 0, 17 * 4 * 8 * 4);
    check(pm_cost_attention(&batch, &args, PM_KV_F32), 14 * 128, 0, 17 * 4 * 8 * 4);
    check(pm_cost_attention(&batch, &args, PM_KV_Q8), 14 * 4 * (8 + 4), 0, 17 * 4 * 8 * 4);
    /* Of the second sequence only the 3 rows before its token and the new one; 1 + 2 + 3 + 4 keys seen. */
    args.window = 4;
    args.q_norm = args.k_norm = a_tensor();
    check(pm_cost_attention(&batch, &args, PM_KV_F16), 7 * 64 + 2 * 32, 0, 10 * 4 * 8 * 4);
}

static void latent_rows(void **state)
{
    (void)state;
    const pm_segment segments[] = {{.first = 0, .n = 3, .pos = 0}, {.first = 3, .n = 1, .pos = 10}};
    pm_batch batch = {.n_tokens = 4, .n_segments = 2, .segments = segments};
    pm_latent_attention_args args = {.heads = 4, .width = 12, .value_width = 8};
    /* 3 rows and 11 rows of 12, the norm; 17 rows seen, by four heads, for a score of 12 and a value of 8. */
    check(pm_cost_latent_attention(&batch, &args, PM_KV_F16), 14 * 24 + 32, 0, 17 * 4 * 20 * 2);
    /* Two rows are chosen at the most: 1 + 2 + 2 of the first three, 2 of the second sequence. */
    args.chosen = (const pm_indices *)(const void *)&some;
    args.top_k = 2;
    check(pm_cost_latent_attention(&batch, &args, PM_KV_F32), (3 + 2) * 48 + 32, 0, 7 * 4 * 20 * 2);

    pm_sparse_index_args index = {.k = a_tensor(), .heads = 3, .head_dim = 16, .top_k = 2};
    /* The third token of the first sequence scores 3 rows, the second sequence's 11; both norm vectors. */
    check(pm_cost_sparse_index(&batch, &index, PM_KV_F16), 14 * 32 + 2 * 64, 0, 14 * 3 * 16 * 2);
    index.top_k = 11; /* nothing to choose: keys are only appended */
    check(pm_cost_sparse_index(&batch, &index, PM_KV_F16), 4 * 32 + 2 * 64, 0, 0);
}

static void matrices_of_heads(void **state)
{
    (void)state;
    pm_weight w[] = {affine(64, 128, 64), affine(64, 128, 64)};
    pm_heads_args args = {.w = w, .heads = 2};
    uint64_t bytes = 2 * 64 * (64 + 4 + 4), ops = 2 * 3 * 64 * 128 * 2;
    check(pm_cost_heads(&(pm_batch){.n_tokens = 3}, &args), bytes, ops, 0);
    args.transposed = true; /* as floats */
    check(pm_cost_heads(&(pm_batch){.n_tokens = 3}, &args), bytes, 0, ops);
}

static void delta_rule(void **state)
{
    (void)state;
    pm_batch batch = {.n_tokens = 5, .n_segments = 2};
    pm_gated_delta_args args = {.key_heads = 1, .value_heads = 2, .key_dim = 4, .value_dim = 8, .kernel = 3};
    /* 24 channels; parameters 24 x 3, 2 + 2, 8; states of 2 x 24 and 2 x 4 x 8, read and written by both sequences. */
    check(pm_cost_gated_delta(&batch, &args), 4 * (72 + 4 + 8) + 2 * 2 * 4 * (48 + 64), 0, 5 * 2 * (24 * 3 + 3 * 64));
}

static void short_convolution(void **state)
{
    (void)state;
    pm_batch batch = {.n_tokens = 5, .n_segments = 2};
    pm_short_conv_args args = {.width = 6, .kernel = 3};
    /* parameters 6 x 3; a state of 2 x 6, read and written by both sequences. */
    check(pm_cost_short_conv(&batch, &args), 4 * 18 + 2 * 2 * 4 * 12, 0, 5 * 2 * 18);
    args.bias = a_tensor();
    check(pm_cost_short_conv(&batch, &args), 4 * (18 + 6) + 2 * 2 * 4 * 12, 0, 5 * 2 * 18);
}

static void state_space(void **state)
{
    (void)state;
    pm_batch batch = {.n_tokens = 5, .n_segments = 2};
    pm_mamba2_args args = {.heads = 4, .head_dim = 2, .groups = 2, .state_size = 3, .kernel = 3};
    /* 8 + 12 channels; parameters 20 x 3, 3 x 4, 8; states of 2 x 20 and 8 x 3, read and written by both sequences. */
    check(pm_cost_mamba2(&batch, &args), 4 * (60 + 12 + 8) + 2 * 2 * 4 * (40 + 24), 0, 5 * 2 * (60 + 2 * 24));
    args.conv_bias = a_tensor();
    check(pm_cost_mamba2(&batch, &args), 4 * (60 + 20 + 12 + 8) + 2 * 2 * 4 * (40 + 24), 0, 5 * 2 * (60 + 2 * 24));
}

static void experts(void **state)
{
    (void)state;
    pm_weight router = matrix(PM_FORMAT_F32, 3, 64), gate[3], up[3], down[3];
    for (int e = 0; e < 3; e++) {
        gate[e] = up[e] = affine(32, 64, 64);
        down[e] = affine(64, 32, 32);
    }
    int counts[] = {2, 0, 1};
    pm_moe_args args = {.route = {.experts = 3, .top_k = 1},
                        .router = &router,
                        .gate = gate,
                        .up = up,
                        .down = down,
                        .expert_tokens = counts};
    pm_batch batch = {.n_tokens = 3};
    /* Two of the three experts; three pairs of a token and an expert. */
    uint64_t bytes = 3 * 64 * 4 + 2 * (2 * 32 * 36 + 64 * 20) + 64 * 4;
    check(pm_cost_moe(&batch, &args), bytes, 3 * 3 * 32 * 64 * 2, 3 * 3 * 64 * 2);

    pm_weight in = matrix(PM_FORMAT_BF16, 16, 64), out = matrix(PM_FORMAT_BF16, 64, 16);
    pm_weight shared_gate = matrix(PM_FORMAT_F32, 1, 64);
    args.shared_gate_proj = args.shared_up_proj = &in;
    args.shared_down_proj = &out;
    args.shared_expert_gate = &shared_gate;
    check(pm_cost_moe(&batch, &args), bytes + 3 * 2048 + 256, 3 * 3 * 32 * 64 * 2,
          3 * 3 * 64 * 2 + 3 * 3 * 1024 * 2 + 3 * 64 * 2);

    pm_weight latent_in = matrix(PM_FORMAT_F32, 8, 64), latent_out = matrix(PM_FORMAT_F32, 64, 8);
    pm_cost before = pm_cost_moe(&batch, &args), after;
    args.latent_in = &latent_in;
    args.latent_out = &latent_out;
    after = pm_cost_moe(&batch, &args);
    assert_int_equal(after.bytes - before.bytes, 2 * 8 * 64 * 4);
    assert_int_equal(after.float_ops - before.float_ops, (uint64_t)batch.n_tokens * 2 * 2 * 8 * 64);
    args.latent_in = args.latent_out = NULL;
    args.gate = NULL; /* squared ReLU of up alone */
    assert_true(pm_cost_moe(&batch, &args).bytes < before.bytes);
    args.router = NULL; /* a plain gated MLP */
    args.shared_expert_gate = NULL;
    check(pm_cost_moe(&batch, &args), 3 * 2048 + 256, 0, 3 * 3 * 1024 * 2);
}

static void outputs(void **state)
{
    (void)state;
    pm_weight head = matrix(PM_FORMAT_F16, 10, 64);
    pm_logits_args args = {.head = &head};
    check(pm_cost_logits(&(pm_batch){.n_tokens = 9, .n_outputs = 2}, &args), 10 * 128 + 256, 0, 2 * 10 * 64 * 2);
}

/* A window of rows, and rows of 4 tokens that are all attended to, or 2 chosen of them. */
static void compressed_rows(void **state)
{
    (void)state;
    pm_segment segment = {.pos = 17, .n = 3};
    pm_batch batch = {.n_tokens = 3, .n_segments = 1, .segments = &segment};
    pm_latent_attention_args args = {
        .heads = 5, .width = 8, .value_width = 8, .window = 6, .ratio = 4, .sinks = a_tensor()};
    uint64_t window = 6 + 2, blocks = 5, seen = 3 * 6 + 4 + 4 + 5;
    check(pm_cost_latent_attention(&batch, &args, PM_KV_F16), (window + blocks) * 8 * 2 + 4 * 8 + 4 * 5, 0,
          2 * seen * 5 * 16);
    args.chosen = (const pm_indices *)(const void *)&some;
    args.top_k = 2;
    seen = 3 * 6 + 3 * 2;
    check(pm_cost_latent_attention(&batch, &args, PM_KV_F16), (window + 5) * 8 * 2 + 4 * 8 + 4 * 5, 0,
          2 * seen * 5 * 16);
    pm_sparse_index_args index = {.heads = 3, .head_dim = 8, .top_k = 4, .ratio = 4};
    check(pm_cost_sparse_index(&batch, &index, PM_KV_F32), 5 * 8 * 4, 0, 2 * 5 * 3 * 8);
    index.top_k = 5;
    check(pm_cost_sparse_index(&batch, &index, PM_KV_F32), 0, 0, 0);
}

/* A segment at 6 with 3 tokens completes one row of 4; states are read and written. */
static void compressor(void **state)
{
    (void)state;
    pm_segment segments[] = {{.pos = 6, .n = 3}, {.pos = 0, .n = 2}};
    pm_batch batch = {.n_tokens = 5, .n_segments = 2, .segments = segments};
    pm_compress_args args = {.ratio = 4, .width = 8, .overlap = true};
    check(pm_cost_compress(&batch, &args, PM_KV_F16), 4 * (4 * 16 + 8) + 8 * 2 + 2 * 2 * 4 * 48, 0, 5 * 16 * 4);
    args.overlap = false;
    check(pm_cost_compress(&batch, &args, PM_KV_F32), 4 * (4 * 8 + 8) + 8 * 4 + 2 * 2 * 4 * 24, 0, 5 * 8 * 4);
}

static void hyper_connections(void **state)
{
    (void)state;
    pm_hyper_in_args in = {.n = 4, .hidden = 10, .iterations = 20};
    check(pm_cost_hyper_in(&(pm_batch){.n_tokens = 3}, &in), 4 * (24 * 40 + 24 + 3), 0, 2 * 3 * 25 * 40);
    in.iterations = 0;
    check(pm_cost_hyper_in(&(pm_batch){.n_tokens = 1}, &in), 4 * (4 * 40 + 4 + 1), 0, 2 * 5 * 40);
    check(pm_cost_hyper_out(&(pm_batch){.n_tokens = 3}, &(pm_hyper_out_args){.n = 4, .hidden = 10}), 0, 0,
          2 * 3 * 10 * 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding),         cmocka_unit_test(matrices),          cmocka_unit_test(formats),
        cmocka_unit_test(cached_rows),       cmocka_unit_test(latent_rows),       cmocka_unit_test(matrices_of_heads),
        cmocka_unit_test(delta_rule),        cmocka_unit_test(short_convolution), cmocka_unit_test(state_space),
        cmocka_unit_test(experts),           cmocka_unit_test(outputs),           cmocka_unit_test(compressor),
        cmocka_unit_test(hyper_connections), cmocka_unit_test(compressed_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
