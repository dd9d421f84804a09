/* Kept timelines on disk, over the toy of toy.h: a restart costs reading, a file that is not whole is nothing, and no
 * bound is passed, whoever is killed when. */
#include "answers.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 300, PROMPTS = 16, ANSWER = 20 };

static char folder[64];
static pm_token prompts[PROMPTS][PROMPT + 200];

static char *path_of(const char *name)
{
    static char path[400];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

/* Calls `visit` for every file in the folder but the lock; returns how many. */
static int each_file(void (*visit)(const char *path))
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));)
        if (item->d_name[0] != '.' && strcmp(item->d_name, "lock") != 0) {
            n++;
            if (visit)
                visit(path_of(item->d_name));
        }
    closedir(dir);
    return n;
}

static void remove_it(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static uint64_t sum;

static void add_size(const char *path)
{
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    sum += (uint64_t)status.st_size;
}

static uint64_t bytes_on_disk(void)
{
    sum = 0;
    each_file(add_size);
    return sum;
}

static char found[400];

static void note_path(const char *path)
{
    snprintf(found, sizeof(found), "%s", path);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/polymath-disk-XXXXXX");
    assert_non_null(mkdtemp(folder));
    seed = 7;
    for (int i = 0; i < PROMPTS; i++) {
        random_ids(prompts[i], PROMPT + 200);
        prompts[i][0] = i; /* so that they have nothing in common */
    }
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    each_file(remove_it);
    unlink(path_of("lock"));
    return rmdir(folder);
}

static pm_scheduler_options on_disk(uint64_t memory, uint64_t disk)
{
    return (pm_scheduler_options){.cache_dir = folder, .cache_bytes = memory, .disk_bytes = disk};
}

static pm_scheduler_info describe(void)
{
    pm_scheduler_info info;
    pm_scheduler_describe(scheduler, &info);
    return info;
}

/* A request by a model whose tokens take long to compute. Returns how many of the prompt were computed. */
static size_t answer_to(int i, const pm_token *ids, size_t n)
{
    scheduler->token_seconds = 1;
    memset(&answers[i], 0, sizeof(answers[i]));
    ask(i, ids, n, 0, options_of(ANSWER, 0));
    run();
    same_alone(i, ids, n, options_of(ANSWER, 0));
    size_t computed = answers[i].result.prompt.computed;
    assert_int_equal(computed + answers[i].result.prompt.reused, n);
    pm_result_free(&answers[i].result);
    answers[i].result = (pm_result){0};
    return computed;
}

/* The process ends and another begins. */
static void restart(bool states, const pm_scheduler_options *options)
{
    finish();
    begin(states, options);
}

static void test_restart(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_scheduler_options options = on_disk(0, 0);
        pm_token longer[PROMPT + ANSWER + 30];
        begin(states, &options);
        for (int i = 0; i < PROMPTS; i++)
            assert_int_equal(answer_to(i, prompts[i], PROMPT), PROMPT);
        assert_int_equal(describe().fetched, 0);
        restart(states, &options);
        assert_int_equal(describe().stored, PROMPTS);
        assert_int_equal(describe().stored_bytes, bytes_on_disk());
        assert_int_equal(describe().disk_bytes, (uint64_t)10 << 30);
        for (int i = 0; i < PROMPTS; i++)
            assert_int_equal(answer_to(i, prompts[i], PROMPT), states ? 0 : 1);
        assert_int_equal(describe().fetched, PROMPTS);
        assert_int_equal(describe().computed, states ? 0 : PROMPTS);
        /* a history that has grown: what is new is computed, and the token that was not when the answer ended */
        restart(states, &options);
        memcpy(longer, prompts[3], PROMPT * sizeof(pm_token));
        ask(0, prompts[3], PROMPT, 0, options_of(ANSWER, 0));
        run();
        memcpy(longer + PROMPT, answers[0].result.ids, ANSWER * sizeof(pm_token));
        random_ids(longer + PROMPT + ANSWER, 30);
        restart(states, &options);
        assert_int_equal(answer_to(1, longer, PROMPT + ANSWER + 30), 31);
        /* one that parts from it at the end of the prompt, of which there is a snapshot */
        longer[PROMPT] ^= 1;
        restart(states, &options);
        assert_int_equal(answer_to(1, longer, PROMPT + ANSWER + 30), ANSWER + 30);
        finish();
        each_file(remove_it);
    }
}

/* What memory has no room for is on the disk, and what grows replaces what it was. */
static void test_out_of_memory(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_scheduler_options options = on_disk(states ? 400000 : 120000, 0);
        begin(states, &options);
        for (int round = 0; round < 3; round++)
            for (int i = 0; i < PROMPTS; i++) {
                size_t n = PROMPT + 60 * (size_t)round, before = n - 60;
                size_t computed = answer_to(i, prompts[i], n);
                if (computed > (round ? n - before : n))
                    fail_msg("states %d, round %d, prompt %d: %zu tokens computed", states, round, i, computed);
            }
        assert_true(describe().evicted > 20);
        assert_true(describe().fetched > 20);
        assert_int_equal(describe().disk_failed, 0);
        finish();
        assert_in_range(each_file(NULL), 1, 3 * PROMPTS);
        each_file(remove_it);
    }
}

/* Reading costs more than computing here. */
static void test_cheap_tokens(void **state)
{
    (void)state;
    pm_scheduler_options options = on_disk(0, 0);
    begin(true, &options);
    answer_to(0, prompts[0], PROMPT);
    restart(true, &options);
    scheduler->token_seconds = 1e-12;
    ask(0, prompts[0], PROMPT, 0, options_of(ANSWER, 0));
    run();
    assert_int_equal(answers[0].result.prompt.computed, PROMPT);
    assert_int_equal(describe().fetched, 0);
    finish();
    each_file(remove_it);
}

/* A file cut at every multiple of 64 bytes, or with a bit turned there; with states, which make it larger, at some. */
static void test_damaged_files(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_scheduler_options options = on_disk(0, 0);
        static char whole[1 << 16];
        begin(states, &options);
        answer_to(0, prompts[0], 100);
        finish();
        assert_int_equal(each_file(note_path), 1);
        FILE *f = fopen(found, "rb");
        size_t size = fread(whole, 1, sizeof(whole), f);
        assert_in_range(size, 1000, sizeof(whole) - 1);
        fclose(f);
        for (size_t at = 0; at <= size; at += states && at > 1024 ? 1024 + 64 : 64)
            for (int turned = 0; turned < 2; turned++) {
                f = fopen(found, "wb");
                whole[at] ^= turned ? 4 : 0;
                assert_int_equal(fwrite(whole, 1, turned ? size : at, f), turned ? size : at);
                whole[at] ^= turned ? 4 : 0;
                fclose(f);
                begin(states, &options);
                size_t computed = answer_to(0, prompts[0], 100);
                pm_scheduler_info info = describe();
                bool cut_seen = turned || info.disk_ignored == (at < size);
                if ((at < size && (computed != 100 || info.fetched)) || !cut_seen)
                    fail_msg("%s %zu of %zu: %zu computed, %d fetched, %d ignored", turned ? "turned" : "cut", at, size,
                             computed, (int)info.fetched, (int)info.disk_ignored);
                finish();
            }
        each_file(remove_it);
    }
}

/* Other checkpoints, element types and precisions, and what is nobody's: left alone, counted, not removed. */
static void test_foreign_files(void **state)
{
    (void)state;
    pm_scheduler_options options = on_disk(0, 0);
    begin(true, &options);
    answer_to(0, prompts[0], PROMPT);
    finish();
    assert_int_equal(each_file(note_path), 1);
    FILE *f = fopen(path_of("notes.txt"), "w");
    fputs("not a timeline", f);
    fclose(f);
    for (int what = 0; what < 3; what++) {
        if (what == 0)
            json_object_set_new(config.root, "hidden_size", json_integer(7));
        begin(true, NULL);
        engine->kv_type = what == 1 ? PM_KV_F32 : PM_KV_F16;
        engine->precision = what == 2 ? PM_PRECISION_FAST : PM_PRECISION_EXACT;
        pm_scheduler_free(scheduler);
        assert_int_equal(pm_scheduler_new(&scheduler, engine, &options, NULL), PM_OK);
        assert_int_equal(describe().stored, 0);
        assert_int_equal(describe().disk_ignored, 2 + what);
        assert_true(describe().stored_bytes > 0);
        assert_int_equal(answer_to(0, prompts[0], PROMPT), PROMPT);
        finish();
        json_object_del(config.root, "hidden_size");
        assert_int_equal(each_file(NULL), 3 + what);
    }
    /* a file of ours under another's name */
    begin(true, NULL);
    json_object_set_new(config.root, "hidden_size", json_integer(7));
    pm_scheduler_free(scheduler);
    char other[400];
    snprintf(other, sizeof(other), "%s", path_of("0123456789abcdef-0123456789abcdef.timeline"));
    assert_int_equal(rename(found, other), 0);
    assert_int_equal(pm_scheduler_new(&scheduler, engine, &options, NULL), PM_OK);
    assert_int_equal(describe().stored, 1); /* of the first round */
    assert_int_equal(answer_to(0, prompts[0], PROMPT), 0);
    finish();
    json_object_del(config.root, "hidden_size");
    each_file(remove_it);
}

/* The bound, smaller and smaller; what stays is of use. */
static void test_bound_of_disk(void **state)
{
    (void)state;
    enum { FEW = 9 };
    for (int states = 0; states < 2; states++) {
        uint64_t each = states ? 40000 : 7000, limits[] = {each * 30, each * 5, each * 2, 3000};
        for (size_t k = 0; k < PM_COUNT(limits); k++) {
            pm_scheduler_options options = on_disk(states ? 400000 : 120000, limits[k]);
            begin(states, &options);
            assert_true(bytes_on_disk() <= limits[k]);
            for (int i = 0; i < FEW; i++) {
                answer_to(i, prompts[i], PROMPT);
                assert_true(describe().stored_bytes <= limits[k]);
            }
            finish();
            if (bytes_on_disk() > limits[k])
                fail_msg("%d bytes are on the disk, more than %d", (int)bytes_on_disk(), (int)limits[k]);
            if (limits[k] > each)
                assert_true(each_file(NULL) > 0);
            begin(states, &options);
            int kept = describe().stored, hits = 0;
            for (int i = FEW; i-- > 0;) /* those that were used last first */
                hits += answer_to(i, prompts[i], PROMPT) <= 1;
            if (hits < kept / 2)
                fail_msg("%d timelines were on the disk, %d of use", kept, hits);
            finish();
        }
        each_file(remove_it);
    }
}

/* A process that fills the folder, with little memory. Does not return. */
static void fill_folder(bool states, uint64_t limit, int first)
{
    pm_scheduler_options options = on_disk(states ? 400000 : 120000, limit);
    begin(states, &options);
    for (int round = 0;; round++)
        for (int i = 0; i < PROMPTS / 2; i++) {
            answers[i] = (answer){0};
            ask(i, prompts[first + i], PROMPT + 10 * (size_t)(round % 20), 0, options_of(ANSWER, 0));
            while (pm_scheduler_step(scheduler))
                ;
            pm_result_free(&answers[i].result);
        }
}

/* Killed at random points: what is there is whole, within the bound, and of use. */
static void test_killed(void **state)
{
    (void)state;
    uint64_t limit = 200000;
    int stored = 0;
    for (int i = 0; i < 24; i++) {
        bool states = i & 1;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            fill_folder(states, limit, 0);
        for (int k = 0; k < 20000 && each_file(NULL) == 0; k++) /* it has begun to write */
            usleep(500);
        usleep((useconds_t)rnd(30000));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        if (bytes_on_disk() > limit)
            fail_msg("%d bytes are on the disk, more than %d", (int)bytes_on_disk(), (int)limit);
        pm_scheduler_options options = on_disk(0, limit);
        begin(states, &options);
        pm_scheduler_info before = describe();
        assert_int_equal(before.disk_ignored, 0);
        assert_int_equal(before.stored, each_file(NULL)); /* what was begun has been removed */
        for (int k = 0; k < PROMPTS / 2; k++)
            answer_to(k, prompts[k], PROMPT + 200);
        assert_int_equal(describe().disk_ignored, 0);
        assert_true(before.stored == 0 || describe().fetched > 0);
        stored += before.stored;
        finish();
        each_file(remove_it);
    }
    assert_true(stored > 12);
}

/* Two processes on one folder: each finds what the other wrote, and what vanishes is a miss. */
static void test_two_processes(void **state)
{
    (void)state;
    pm_scheduler_options options = on_disk(90000, 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        begin(false, &options);
        for (int i = 0; i < PROMPTS / 2; i++)
            answer_to(i, prompts[i], PROMPT);
        finish();
        _exit(0);
    }
    begin(false, &options);
    for (int i = PROMPTS / 2; i < PROMPTS; i++)
        answer_to(i, prompts[i], PROMPT);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    restart(false, &options);
    assert_int_equal(describe().stored, PROMPTS);
    for (int i = 0; i < PROMPTS; i++)
        assert_int_equal(answer_to(i, prompts[i], PROMPT), 1);
    assert_int_equal(describe().disk_ignored, 0);
    restart(false, &options);
    each_file(remove_it);
    for (int i = 0; i < PROMPTS; i++)
        assert_int_equal(answer_to(i, prompts[i], PROMPT), PROMPT);
    assert_int_equal(describe().disk_ignored, 0);
    finish();
    each_file(remove_it);
}

/* Answers that together grow beyond the memory, beside timelines that are not on the disk yet. */
static void test_put_back(void **state)
{
    (void)state;
    for (int states = 0; states < 2; states++) {
        pm_scheduler_options options = on_disk(states ? 420000 : 300000, 0);
        begin(states, &options);
        answer_to(5, prompts[5], PROMPT);
        for (int i = 0; i < 4; i++)
            ask(i, prompts[i], 100, 0, options_of(1000, (uint64_t)i));
        run();
        for (int i = 0; i < 4; i++)
            same_alone(i, prompts[i], 100, options_of(1000, (uint64_t)i));
        assert_true(describe().put_back > 0);
        assert_int_equal(describe().disk_failed, 0);
        finish();
        each_file(remove_it);
    }
}

/* Another process that keeps the folder to itself: nothing is written, and nobody waits for long. */
static void test_kept_lock(void **state)
{
    (void)state;
    pm_scheduler_options options = on_disk(400000, 0);
    begin(true, &options);
    int lock = open(path_of("lock"), O_RDWR);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    double start = pm_now();
    answer_to(0, prompts[0], PROMPT);
    answer_to(1, prompts[1], PROMPT);
    assert_true(pm_now() - start < 5);
    assert_int_equal(each_file(NULL), 0);
    assert_int_equal(flock(lock, LOCK_UN), 0);
    close(lock);
    finish();
    assert_int_equal(each_file(NULL), 2);
}

/* At the end that is waited for no longer than is wanted. */
static void test_end_with_a_kept_lock(void **state)
{
    (void)state;
    pm_scheduler_options options = on_disk(0, 0);
    options.flush_seconds = 0.3;
    begin(true, &options);
    int lock = open(path_of("lock"), O_RDWR);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    for (int i = 0; i < 4; i++)
        answer_to(i, prompts[i], PROMPT);
    double start = pm_now();
    finish();
    double took = pm_now() - start;
    if (took < 0.25 || took > 3)
        fail_msg("the end took %.2f s, with flush_seconds 0.3", took);
    assert_int_equal(each_file(NULL), 0);
    close(lock);
    begin(true, &options);
    for (int i = 0; i < 4; i++)
        answer_to(i, prompts[i], PROMPT);
    finish();
    assert_int_equal(each_file(NULL), 4);
}

/* A disk on which there is no room: answers go on, and nothing is left behind. */
static void test_failing_disk(void **state)
{
    (void)state;
    struct rlimit before, small = {.rlim_cur = 3000, .rlim_max = RLIM_INFINITY};
    pm_scheduler_options options = on_disk(120000, 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    begin(false, &options);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (int i = 0; i < PROMPTS; i++)
        assert_int_equal(answer_to(i, prompts[i], PROMPT), PROMPT);
    assert_true(describe().disk_failed > 0);
    assert_int_equal(describe().stored, 0);
    finish();
    assert_int_equal(each_file(NULL), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

/* Without a request that ends it, what is kept is written soon: a process that is killed has it. */
static void test_written_soon(void **state)
{
    (void)state;
    pm_scheduler_options options = on_disk(0, 0);
    begin(true, &options);
    answer_to(0, prompts[0], PROMPT);
    for (int i = 0; i < 500 && describe().stored == 0; i++)
        usleep(10000);
    assert_int_equal(describe().stored, 1);
    assert_int_equal(each_file(NULL), 1);
    /* a little more is not written again, much more is */
    answer_to(0, prompts[0], PROMPT + 30);
    answer_to(0, prompts[0], PROMPT + 200);
    for (int i = 0; i < 500 && describe().stored == 1; i++)
        usleep(10000);
    assert_int_equal(describe().stored, 2);
    restart(true, &options);
    assert_int_equal(answer_to(0, prompts[0], PROMPT + 200), 0);
    finish();
    each_file(remove_it);
}

/* A long timeline is read in pieces, beside which another answer grows by a token a step; who waits for it may go, and
 * so may the scheduler. */
static void test_fetch_beside_answers(void **state)
{
    (void)state;
    enum { LONG = 4000 };
    static pm_token ids[LONG];
    random_ids(ids, LONG);
    ids[0] = 0;
    prompts[1][0] = 1;
    for (int states = 0; states < 2; states++) {
        pm_scheduler_options options = on_disk(0, 0);
        begin(states, &options);
        assert_int_equal(answer_to(0, ids, LONG), LONG);
        options.step_seconds = 1e-9; /* every piece takes too long */
        for (int how = 0; how < 3; how++) {
            restart(states, &options);
            scheduler->token_seconds = 1e3;
            ask(1, prompts[1], 10, 0, options_of(400, 0));
            pm_scheduler_step(scheduler);
            ask(2, ids, LONG, 0, options_of(ANSWER, 0));
            for (int i = 0; i < 50; i++) {
                uint64_t sampled = describe().sampled;
                pm_scheduler_step(scheduler);
                assert_int_equal(describe().sampled, sampled + 1);
                assert_int_equal(describe().waiting, 1);
            }
            assert_int_equal(describe().fetched, 0);
            if (how == 1)
                pm_request_cancel(answers[2].request);
            if (how < 2) {
                run();
                same_alone(1, prompts[1], 10, options_of(400, 0));
                assert_int_equal(describe().fetched, 1);
            }
            if (how == 0) {
                same_alone(2, ids, LONG, options_of(ANSWER, 0));
                assert_int_equal(answers[2].result.prompt.computed, states ? 0 : 1);
            }
        }
        finish();
        each_file(remove_it);
    }
}

static void test_refused_folders(void **state)
{
    (void)state;
    pm_scheduler *none = NULL;
    pm_error err;
    begin(false, NULL);
    char file[400], below[420];
    snprintf(file, sizeof(file), "%s", path_of("file"));
    snprintf(below, sizeof(below), "%s/below", file);
    fclose(fopen(file, "w"));
    const char *bad[] = {file, below, "/nonexistent/folder"};
    for (size_t i = 0; i < PM_COUNT(bad); i++) {
        pm_scheduler_options options = {.cache_dir = bad[i]};
        assert_int_equal(pm_scheduler_new(&none, engine, &options, &err), PM_ERR_IO);
        assert_null(none);
        if (!strstr(err.message, bad[i]))
            fail_msg("'%s' does not name %s", err.message, bad[i]);
    }
    /* one that is not there is made */
    char made[400];
    snprintf(made, sizeof(made), "%s", path_of("made"));
    pm_scheduler_options options = {.cache_dir = made};
    assert_int_equal(pm_scheduler_new(&none, engine, &options, &err), PM_OK);
    pm_scheduler_free(none);
    finish();
    unlink(path_of("made/lock"));
    assert_int_equal(rmdir(made), 0);
    assert_int_equal(unlink(file), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_restart, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_out_of_memory, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_cheap_tokens, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_damaged_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_foreign_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_bound_of_disk, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_killed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_two_processes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_put_back, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_kept_lock, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_end_with_a_kept_lock, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_failing_disk, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_written_soon, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_fetch_beside_answers, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_refused_folders, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
