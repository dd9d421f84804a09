/* The profile of operations and the measurements of the machine, through the public header. */
#include "polymath.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const model = SOURCE_DIR "/models/default";

static void check(int status, const pm_error *err)
{
    if (status != PM_OK)
        fail_msg("%s", err->message);
}

static pm_engine *engine_new(pm_engine_options options)
{
    pm_engine *engine = NULL;
    pm_error err;
    check(pm_engine_open(&engine, model, &options, &err), &err);
    return engine;
}

/* Computes n tokens on a new session; its logits, the caller's to free. */
static float *compute(pm_engine *engine, size_t n)
{
    pm_info info;
    pm_error err;
    pm_session *session;
    pm_engine_info(engine, &info);
    check(pm_session_new(&session, engine, &err), &err);
    pm_token *ids = calloc(n, sizeof(*ids));
    float *logits = calloc((size_t)info.vocab, sizeof(*logits));
    for (size_t i = 0; i < n; i++)
        ids[i] = (pm_token)(7 * i % 1000);
    check(pm_step(engine, &(pm_work){.session = session, .tokens = ids, .n = n}, 1, &err), &err);
    memcpy(logits, pm_session_logits(session), (size_t)info.vocab * sizeof(*logits));
    pm_session_free(session);
    free(ids);
    return logits;
}

static const pm_op_profile *find(const pm_profile *profile, const char *name)
{
    for (int i = 0; i < profile->n; i++)
        if (strcmp(profile->op[i].name, name) == 0)
            return &profile->op[i];
    fail_msg("there is no operation '%s' in the profile", name);
    return NULL;
}

static void without_the_option(void **state)
{
    (void)state;
    pm_engine *engine = engine_new((pm_engine_options){0});
    pm_profile profile = {.n = -1};
    pm_error err;
    assert_int_equal(pm_engine_profile(engine, &profile, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "profile"));
    assert_int_equal(profile.n, -1);
    pm_engine_profile_reset(engine);
    pm_engine_close(engine);
}

static void profile_changes_nothing(void **state)
{
    (void)state;
    pm_info info;
    pm_engine *plain = engine_new((pm_engine_options){0}), *profiled = engine_new((pm_engine_options){.profile = true});
    pm_engine_info(plain, &info);
    float *a = compute(plain, 40), *b = compute(profiled, 40);
    assert_memory_equal(a, b, (size_t)info.vocab * sizeof(*a));
    free(a);
    free(b);
    pm_engine_close(plain);
    pm_engine_close(profiled);
}

static void every_operation_counts(void **state)
{
    (void)state;
    pm_info info;
    pm_profile one, many;
    pm_error err;
    pm_engine *engine = engine_new((pm_engine_options){.profile = true});
    pm_engine_info(engine, &info);
    check(pm_engine_profile(engine, &one, &err), &err);
    assert_int_equal(one.n, 0);

    free(compute(engine, 1));
    check(pm_engine_profile(engine, &one, &err), &err);
    uint64_t layers = (uint64_t)info.layers, total = 0;
    assert_int_equal(one.n, 6);
    assert_int_equal(find(&one, "embed")->calls, 1);
    assert_int_equal(find(&one, "linear")->calls, 2 * layers);
    assert_int_equal(find(&one, "attention")->calls + find(&one, "gated_delta")->calls, layers);
    assert_int_equal(find(&one, "moe")->calls, layers);
    assert_int_equal(find(&one, "logits")->calls, 1);
    for (int i = 0; i < one.n; i++) {
        assert_true(one.op[i].seconds > 0 && one.op[i].seconds < 10);
        total += one.op[i].integer_ops;
    }
    /* A multiply-add per parameter: all but the norms and the like, which are few, and the row of the embedding. */
    assert_true((double)total > 1.96 * (double)info.active && (double)total < 2.0 * (double)info.active);

    pm_engine_profile_reset(engine);
    free(compute(engine, 40));
    check(pm_engine_profile(engine, &many, &err), &err);
    assert_int_equal(find(&many, "moe")->calls, layers);
    /* 40 tokens share what is not an expert, and most likely choose nearly all of these. */
    assert_int_equal(find(&many, "linear")->bytes, find(&one, "linear")->bytes);
    assert_int_equal(find(&many, "linear")->integer_ops, 40 * find(&one, "linear")->integer_ops);
    assert_int_equal(find(&many, "moe")->integer_ops, 40 * find(&one, "moe")->integer_ops);
    assert_true(find(&many, "moe")->bytes > 2 * find(&one, "moe")->bytes);
    assert_true(find(&many, "moe")->bytes < info.weight_bytes);
    assert_int_equal(find(&many, "logits")->bytes, find(&one, "logits")->bytes);

    pm_engine_profile_reset(engine);
    check(pm_engine_profile(engine, &many, &err), &err);
    assert_int_equal(many.n, 0);
    pm_engine_close(engine);
}

static void a_failed_call_does_not_count(void **state)
{
    (void)state;
    pm_error err;
    pm_profile profile;
    pm_session *session;
    pm_engine *engine = engine_new((pm_engine_options){.profile = true});
    check(pm_session_new(&session, engine, &err), &err);
    pm_session_cancel(session);
    assert_int_equal(pm_step(engine, &(pm_work){.session = session, .tokens = (pm_token[]){1}, .n = 1}, 1, &err),
                     PM_ERR_CANCELLED);
    check(pm_engine_profile(engine, &profile, &err), &err);
    assert_int_equal(profile.n, 0);
    pm_session_free(session);
    pm_engine_close(engine);
}

static void the_machine(void **state)
{
    (void)state;
    static const pm_simd levels[] = {PM_SIMD_BEST, PM_SIMD_SCALAR};
    for (size_t i = 0; i < sizeof(levels) / sizeof(*levels); i++) {
        pm_limits limits;
        pm_error err;
        pm_engine *engine = engine_new((pm_engine_options){.threads = 2, .simd = levels[i]});
        check(pm_engine_measure(engine, &limits, &err), &err);
        print_message("reads %.2f GB/s%s, %.2f G integer and %.2f G float operations/s\n",
                      limits.read_bytes_per_second / 1e9, limits.from_cache ? " from cache" : "",
                      limits.integer_ops_per_second / 1e9, limits.float_ops_per_second / 1e9);
        assert_int_equal(limits.threads, 2);
        assert_true(limits.read_bytes_per_second > 1e7 && limits.read_bytes_per_second < 1e13);
        assert_true(limits.integer_ops_per_second > 1e6 && limits.integer_ops_per_second < 1e14);
        assert_true(limits.float_ops_per_second > 1e6 && limits.float_ops_per_second < 1e14);
        pm_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_option),
        cmocka_unit_test(profile_changes_nothing),
        cmocka_unit_test(every_operation_counts),
        cmocka_unit_test(a_failed_call_does_not_count),
        cmocka_unit_test(the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
