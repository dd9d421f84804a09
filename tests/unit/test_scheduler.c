/* Many answers at once over the toy of toy.h: each says what it says alone, computes only what nobody has, and no bound
 * is passed. */
#include "answers.h"

static void test_company(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++)
        for (int parallel = 1; parallel < 10; parallel += 4) {
            pm_token ids[24][200];
            size_t n[24];
            begin(states, &(pm_scheduler_options){.parallel = parallel});
            for (int i = 0; i < 24; i++) {
                n[i] = 1 + (size_t)rnd(200);
                random_ids(ids[i], n[i]);
                if (i % 3 == 2) /* some begin alike */
                    memcpy(ids[i], ids[i - 1], (n[i] < n[i - 1] ? n[i] : n[i - 1]) / 2 * sizeof(pm_token));
                ask(i, ids[i], n[i], n[i] / 2, options_of(1 + (size_t)rnd(30), (uint64_t)(i % 4)));
                for (int k = rnd(5); k > 0; k--)
                    pm_scheduler_step(scheduler);
            }
            run();
            for (int i = 0; i < 24; i++) {
                pm_generate_options options = options_of(answers[i].result.n, (uint64_t)(i % 4));
                same_alone(i, ids[i], n[i], options);
                assert_int_equal(answers[i].result.prompt.reused + answers[i].result.prompt.computed, n[i]);
                if (answers[i].result.prompt.computed > 1)
                    assert_int_equal(answers[i].read, n[i]);
            }
            finish();
        }
}

/* Two conversations in turn, each of which grows by what was answered and something new. */
static void test_growing_histories(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_token ids[2][1000];
        size_t n[2] = {0, 0};
        begin(states, NULL);
        for (int turn = 0; turn < 8; turn++)
            for (int who = 0; who < 2; who++) {
                answer *a = &answers[turn * 2 + who];
                size_t known = n[who] ? n[who] - 1 : 0; /* the last token of an answer has not been computed */
                random_ids(ids[who] + n[who], 30);
                ids[who][0] = who;
                n[who] += 30;
                ask(turn * 2 + who, ids[who], n[who], n[who] - 3, options_of(10, 0));
                run();
                assert_int_equal(a->result.prompt.reused, known);
                assert_int_equal(a->result.prompt.computed, n[who] - known);
                memcpy(ids[who] + n[who], a->result.ids, 10 * sizeof(pm_token));
                n[who] += 10;
            }
        finish();
    }
}

/* The same prompt again, and one token. */
static void test_exact_hits(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++)
        for (size_t n = 1; n <= 100; n += 99) {
            pm_token ids[100];
            begin(states, NULL);
            random_ids(ids, n);
            for (int i = 0; i < 3; i++) {
                ask(i, ids, n, 0, options_of(20, 0));
                run();
                same_alone(i, ids, n, options_of(20, 0));
                assert_int_equal(answers[i].result.prompt.computed, i == 0 ? n : states ? 0 : 1);
            }
            finish();
        }
}

/* Requests that come together read what they have in common once. */
static void test_alike_at_once(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_token ids[300];
        begin(states, NULL);
        random_ids(ids, 300);
        for (int i = 0; i < 6; i++)
            ask(i, ids, 300, 290, options_of(20, (uint64_t)i));
        run();
        for (int i = 0; i < 6; i++) {
            same_alone(i, ids, 300, options_of(20, (uint64_t)i));
            if (answers[i].result.prompt.computed > (i == 0 ? 300u : 64u))
                fail_msg("states %d, request %d: %zu tokens computed", states, i, answers[i].result.prompt.computed);
        }
        finish();
    }
}

/* Timelines that part where none was remembered: the third that comes there finds the place. */
static void test_branches(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_token ids[4][400];
        begin(states, NULL);
        random_ids(ids[0], 400);
        for (int i = 0; i < 4; i++) {
            memcpy(ids[i], ids[0], 350 * sizeof(pm_token));
            random_ids(ids[i] + 350, 50);
            ids[i][350] = i;
            ask(i, ids[i], 400, 390, options_of(5, 0));
            run();
            same_alone(i, ids[i], 400, options_of(5, 0));
            assert_int_equal(answers[i].result.prompt.reused, i == 0 || (states && i == 1) ? 0 : 350);
        }
        finish();
    }
}

/* 50 prompts in memory for three. */
static void test_bound_of_memory(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_token ids[50][300];
        pm_scheduler_info info;
        uint64_t bytes = states ? 400000 : 120000;
        begin(states, &(pm_scheduler_options){.cache_bytes = bytes, .parallel = 4});
        for (int i = 0; i < 50; i++) {
            random_ids(ids[i], 300);
            ask(i, ids[i], 300, 0, options_of(60, 0));
        }
        run();
        for (int i = 0; i < 50; i++)
            same_alone(i, ids[i], 300, options_of(60, 0));
        pm_scheduler_describe(scheduler, &info);
        assert_true(info.evicted > 0);
        assert_int_equal(info.cache_bytes, bytes);
        assert_int_equal(submit(50, ids[0], 5000, 0, options_of(1, 0)), PM_ERR_MEMORY);
        assert_non_null(strstr(answers[50].message, "5000 tokens; cache_bytes has room for"));
        finish();
    }
}

/* Answers that together grow beyond the memory: the younger wait and go on where they were. */
static void test_put_back(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_token ids[4][100];
        pm_scheduler_info info;
        begin(states, &(pm_scheduler_options){.cache_bytes = states ? 420000 : 300000, .parallel = 4});
        for (int i = 0; i < 4; i++) {
            random_ids(ids[i], 100);
            ask(i, ids[i], 100, 0, options_of(1000, (uint64_t)i));
        }
        run();
        for (int i = 0; i < 4; i++)
            same_alone(i, ids[i], 100, options_of(1000, (uint64_t)i));
        pm_scheduler_describe(scheduler, &info);
        assert_true(info.put_back > 0);
        finish();
    }
}

/* An answer is cut where the memory of all ends, as at the end of the context. */
static void test_room_for_an_answer(void **state)
{
    (void)state;
    pm_token ids[100];
    begin(false, &(pm_scheduler_options){.cache_bytes = 50000});
    random_ids(ids, 100);
    ask(0, ids, 100, 0, options_of(0, 0));
    run();
    assert_int_equal(answers[0].status, PM_OK);
    assert_int_equal(answers[0].result.finish, PM_FINISH_LENGTH);
    assert_true(answers[0].result.n > 50 && answers[0].result.n < 400);
    finish();
}

/* A long prompt is read in pieces, beside which every answer grows by a token a step. */
static void test_long_prompt_beside_answers(void **state)
{
    (void)state;
    pm_token ids[5000];
    begin(true, &(pm_scheduler_options){.step_seconds = 1e-9}); /* every piece takes too long */
    random_ids(ids, 5000);
    for (int i = 0; i < 3; i++)
        ask(i, ids + i, 10, 0, options_of(900, 0));
    for (int i = 0; i < 8; i++)
        pm_scheduler_step(scheduler);
    ask(3, ids, 5000, 0, options_of(1, 0));
    for (int i = 0; i < 300; i++) {
        int tokens = world.tokens;
        pm_scheduler_info before, after;
        pm_scheduler_describe(scheduler, &before);
        pm_scheduler_step(scheduler);
        pm_scheduler_describe(scheduler, &after);
        assert_int_equal(after.sampled - before.sampled, 3);
        assert_true(world.tokens - tokens <= 3 + (i < 4 ? STEP : 8));
    }
    run();
    same_alone(3, ids, 5000, options_of(1, 0));
    finish();
}

/* Prompts that are read together get equal shares: a short one does not wait for a long one that came before. */
static void test_shares(void **state)
{
    (void)state;
    pm_token ids[5000];
    begin(false, NULL);
    random_ids(ids, 5000);
    ask(0, ids, 5000, 0, options_of(1, 0));
    pm_scheduler_step(scheduler);
    ids[0] ^= 1;
    ask(1, ids, 64, 0, options_of(1, 0));
    for (int i = 0; i < 4; i++)
        pm_scheduler_step(scheduler);
    assert_true(answers[1].ended);
    assert_false(answers[0].ended);
    finish();
    assert_int_equal(answers[0].result.n, 0);
}

/* In the queue, while reading, while writing, from the callback, and with the scheduler. */
static void test_cancelling(void **state)
{
    (void)state;
    pm_token ids[5000];
    pm_generate_options options = options_of(100, 0);
    begin(true, &(pm_scheduler_options){.parallel = 3});
    random_ids(ids, 5000);
    ask(0, ids, 5000, 0, options);
    ask(1, ids + 1, 10, 0, options);
    answers[2].stop_after = 5;
    ask(2, ids + 2, 10, 0, options);
    ask(3, ids + 3, 10, 0, options);
    for (int i = 0; i < 3; i++)
        pm_scheduler_step(scheduler);
    for (int i = 0; i < 4; i++)
        if (i != 2)
            pm_request_cancel(answers[i].request);
    pm_scheduler_step(scheduler);
    for (int i = 0; i < 4; i++)
        if (i != 2 && (!answers[i].ended || answers[i].status != PM_OK))
            fail_msg("request %d has not ended in the step after its cancelling", i);
    assert_int_equal(answers[0].result.n, 0);
    assert_true(answers[1].result.n >= 2);
    assert_int_equal(answers[3].result.n, 0);
    run();
    assert_true(answers[2].ended && answers[2].texts == 5);
    for (int i = 0; i < 4; i++)
        assert_int_equal(answers[i].result.finish, PM_FINISH_CANCELLED);
    for (int i = 4; i < 9; i++)
        ask(i, ids + i, 100, 0, options);
    pm_scheduler_step(scheduler);
    finish();
    for (int i = 4; i < 9; i++)
        assert_true(answers[i].ended);
}

/* A step that fails ends the request whose tokens made it fail, and no other. */
static void test_faults(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_token ids[5][40];
        begin(states, NULL);
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 40; k++)
                ids[i][k] = rnd(VOCAB - 1);
        ids[2][33] = VOCAB - 1;
        world.poisoned = true;
        pm_bias never = {VOCAB - 1, -100}; /* the logits of the toy are up to 65535 */
        for (int i = 0; i < 5; i++) {
            pm_generate_options options = options_of(1, 0);
            options.sampling.bias = &never;
            options.sampling.n_bias = 1;
            ask(i, ids[i], 40, 0, options);
        }
        run();
        assert_int_equal(answers[2].status, PM_ERR_NUMERIC);
        assert_string_equal(answers[2].message, "the toy failed");
        for (int i = 0; i < 5; i++)
            if (i != 2)
                same_alone(i, ids[i], 40, options_of(1, 0));
        finish();
    }
}

static void test_refusals(void **state)
{
    (void)state;
    pm_token ids[20] = {0};
    pm_error err;
    pm_scheduler *none = NULL;
    const struct {
        pm_scheduler_options options;
        int status;
        const char *message;
    } bad[] = {
        {{.parallel = -1}, PM_ERR_INVALID, "parallel is -1"},
        {{.parallel = STEP + 1}, PM_ERR_INVALID, "parallel is 65, not between 1 and step_tokens, 64"},
        {{.queue = -1}, PM_ERR_INVALID, "queue is -1"},
        {{.step_seconds = -1}, PM_ERR_INVALID, "step_seconds is -1"},
        {{.flush_seconds = -1}, PM_ERR_INVALID, "flush_seconds is -1"},
        {{.cache_bytes = 10}, PM_ERR_MEMORY, "cache_bytes is 10"},
    };
    begin(false, &(pm_scheduler_options){.queue = 2});
    for (size_t i = 0; i < PM_COUNT(bad); i++) {
        assert_int_equal(pm_scheduler_new(&none, engine, &bad[i].options, &err), bad[i].status);
        if (none || !strstr(err.message, bad[i].message))
            fail_msg("%s, wanted %s", err.message, bad[i].message);
    }
    assert_int_equal(submit(0, ids, 0, 0, options_of(1, 0)), PM_ERR_INVALID);
    static pm_token many[CTX + 1];
    assert_int_equal(submit(0, many, CTX + 1, 0, options_of(1, 0)), PM_ERR_LIMIT);
    assert_non_null(strstr(answers[0].message, "6001 tokens, more than the context of 6000"));
    ids[3] = VOCAB;
    assert_int_equal(submit(0, ids, 20, 0, options_of(1, 0)), PM_ERR_INVALID);
    assert_non_null(strstr(answers[0].message, "token 3 is 16"));
    ids[3] = 0;
    pm_generate_options options = options_of(1, 0);
    options.top_logprobs = -1;
    assert_int_equal(submit(0, ids, 20, 0, options), PM_ERR_INVALID);
    ask(1, ids, 20, 0, options_of(1, 0));
    ask(2, ids, 20, 0, options_of(1, 0));
    assert_int_equal(submit(3, ids, 20, 0, options_of(1, 0)), PM_ERR_BUSY);
    run();
    assert_true(answers[1].ended && answers[2].ended && !answers[0].ended && !answers[3].ended);
    finish();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_growing_histories),
        cmocka_unit_test(test_exact_hits),
        cmocka_unit_test(test_alike_at_once),
        cmocka_unit_test(test_branches),
        cmocka_unit_test(test_bound_of_memory),
        cmocka_unit_test(test_put_back),
        cmocka_unit_test(test_room_for_an_answer),
        cmocka_unit_test(test_long_prompt_beside_answers),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
