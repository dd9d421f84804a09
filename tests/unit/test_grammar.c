/* Grammars and automata by hand: what follows what, depths, counts, frames, and what may come next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/automaton.h"
#include "text/guide.h"

static const pm_marker_texts no_markers;

/* A grammar whose rule 1 is being built. */
static int32_t begin(pm_grammar *grammar)
{
    assert_int_equal(pm_grammar_init(grammar), PM_OK);
    int32_t rule = pm_rule_new(grammar, false);
    pm_rule_enter(grammar, rule);
    return rule;
}

static int finish(pm_grammar *grammar, int32_t rule, int32_t start)
{
    grammar->rules[rule].start = start;
    return pm_grammar_finish(grammar, rule);
}

/* 'y' when the text is in the language, 'p' when it is the beginning of one that is, 'n' else. */
static char takes(const pm_grammar *grammar, int32_t rule, const char *text)
{
    pm_automaton automaton;
    assert_int_equal(pm_automaton_init(&automaton, grammar), PM_OK);
    pm_set set = pm_automaton_start(&automaton, rule, PM_FRAME_END);
    bool ok = true;
    for (; ok && *text; text++) {
        pm_set next;
        ok = pm_automaton_step(&automaton, &set, (uint8_t)*text, &next);
        if (ok) {
            set = next;
            pm_automaton_keep(&automaton, &set);
        }
    }
    assert_int_equal(automaton.status, PM_OK);
    pm_automaton_free(&automaton);
    return ok ? (set.done ? 'y' : 'p') : 'n';
}

static void expect(const pm_grammar *grammar, int32_t rule, const char *text, char want)
{
    char got = takes(grammar, rule, text);
    if (got != want)
        fail_msg("'%s': %c, not %c", text, got, want);
}

static void test_text(void **state)
{
    pm_grammar grammar;
    int32_t rule = begin(&grammar), end = pm_node_return(&grammar);
    (void)state;
    int32_t either =
        pm_node_either(&grammar, pm_node_text(&grammar, "ab", 2, end), pm_node_text(&grammar, "abc", 3, end));
    assert_int_equal(finish(&grammar, rule, either), PM_OK);
    static const struct {
        const char *text;
        char want;
    } cases[] = {{"", 'p'}, {"a", 'p'}, {"ab", 'y'}, {"abc", 'y'}, {"abcd", 'n'}, {"b", 'n'}, {"ac", 'n'}};
    for (size_t i = 0; i < PM_COUNT(cases); i++)
        expect(&grammar, rule, cases[i].text, cases[i].want);
    pm_grammar_free(&grammar);
}

/* Brackets in brackets: a rule that calls itself goes as deep as PM_DEPTH_MAX, and what cannot end in time is not
 * begun. */
static void test_depth(void **state)
{
    pm_grammar grammar;
    char text[2 * PM_DEPTH_MAX + 4];
    (void)state;
    assert_int_equal(pm_grammar_init(&grammar), PM_OK);
    int32_t rule = pm_rule_new(&grammar, true);
    pm_rule_enter(&grammar, rule);
    int32_t close = pm_node_range(&grammar, ']', ']', pm_node_return(&grammar));
    int32_t inside = pm_node_either(&grammar, close, pm_node_call(&grammar, rule, close));
    int32_t first = pm_rule_new(&grammar, false), start = pm_node_range(&grammar, '[', '[', inside);
    grammar.rules[rule].start = start;
    pm_rule_enter(&grammar, first);
    int32_t called = pm_node_call(&grammar, rule, pm_node_return(&grammar));
    assert_int_equal(finish(&grammar, first, called), PM_OK);
    assert_int_equal(grammar.rules[rule].depth, 1);
    memset(text, '[', PM_DEPTH_MAX + 1);
    text[PM_DEPTH_MAX + 1] = 0;
    expect(&grammar, first, text, 'n');
    text[PM_DEPTH_MAX] = 0;
    expect(&grammar, first, text, 'p');
    memset(text + PM_DEPTH_MAX, ']', PM_DEPTH_MAX);
    text[2 * PM_DEPTH_MAX] = 0;
    expect(&grammar, first, text, 'y');
    pm_grammar_free(&grammar);
}

/* Rules that never end, and what calls them, are refused or left out. */
static void test_endless(void **state)
{
    pm_grammar grammar;
    (void)state;
    int32_t rule = begin(&grammar), end = pm_node_return(&grammar);
    int32_t endless = pm_rule_new(&grammar, false);
    pm_rule_enter(&grammar, endless);
    grammar.rules[endless].start =
        pm_node_range(&grammar, 'x', 'x', pm_node_call(&grammar, endless, pm_node_return(&grammar)));
    pm_rule_leave(&grammar, rule);
    int32_t call = pm_node_call(&grammar, endless, end);
    int32_t either = pm_node_either(&grammar, call, pm_node_range(&grammar, 'y', 'y', end));
    assert_int_equal(finish(&grammar, rule, either), PM_OK);
    expect(&grammar, rule, "x", 'n');
    expect(&grammar, rule, "y", 'y');
    pm_grammar_free(&grammar);

    rule = begin(&grammar);
    int32_t loop = pm_node_split(&grammar);
    pm_way_add(&grammar, loop, pm_node_range(&grammar, 'x', 'x', loop));
    assert_int_equal(finish(&grammar, rule, loop), PM_ERR_INVALID);
    pm_grammar_free(&grammar);
}

/* From two to four of a letter, counted by nodes and by guards. */
static void test_counts(void **state)
{
    (void)state;
    for (int guards = 0; guards < 2; guards++) {
        pm_grammar grammar;
        int32_t rule = begin(&grammar), end = pm_node_return(&grammar), start;
        if (guards) {
            start = pm_node_bytes(&grammar);
            pm_edge_add(&grammar, start, 'a', 'a', start);
            pm_edges_count(&grammar, start, 4);
            pm_edge_enough(&grammar, start, '.', 2, end);
        } else {
            start = pm_node_split(&grammar);
            pm_way_add(&grammar, start, pm_node_count(&grammar, 4, pm_node_range(&grammar, 'a', 'a', start)));
            pm_way_add(&grammar, start, pm_node_enough(&grammar, 2, end, pm_node_range(&grammar, '.', '.', end)));
        }
        assert_int_equal(finish(&grammar, rule, start), PM_OK);
        expect(&grammar, rule, "a.", 'n');
        expect(&grammar, rule, "aa.", 'y');
        expect(&grammar, rule, "aaaa.", 'y');
        expect(&grammar, rule, "aaaaa", 'n');
        pm_grammar_free(&grammar);
    }
}

/* Text up to where an end stands: also where it stands twice, or nearly. */
static void test_until(void **state)
{
    pm_grammar grammar;
    (void)state;
    int32_t rule = begin(&grammar), end = pm_node_return(&grammar);
    assert_int_equal(finish(&grammar, rule, pm_node_until(&grammar, &no_markers, "aab", end)), PM_OK);
    static const struct {
        const char *text;
        char want;
    } cases[] = {{"aab", 'y'},
                 {"aaab", 'y'},
                 {"aaxaab", 'y'},
                 {"xé日😀\n\taab", 'y'},
                 {"aabx", 'n'},
                 {"\xC3x", 'n'},
                 {"aa", 'p'},
                 {"\xED\xA0", 'n'},
                 {"\xFF", 'n'},
                 {"aa\xC3\xA9"
                  "aab",
                  'y'}};
    for (size_t i = 0; i < PM_COUNT(cases); i++)
        expect(&grammar, rule, cases[i].text, cases[i].want);
    pm_grammar_free(&grammar);

    /* An end that is a token is only that: spelt out it is no end, and not allowed. */
    char *texts[] = {(char *)"<x>"};
    pm_marker_texts markers = {texts, 1};
    rule = begin(&grammar), end = pm_node_return(&grammar);
    assert_int_equal(finish(&grammar, rule, pm_node_until(&grammar, &markers, "<x>", end)), PM_OK);
    expect(&grammar, rule, "a<x", 'p');
    expect(&grammar, rule, "a<x>", 'n');
    expect(&grammar, rule, "a<x<\xFF<x>\xFE", 'y');
    pm_grammar_free(&grammar);
}

/* Two ways to the same place are one: sets do not grow with what was read. */
static void test_sets_stay_small(void **state)
{
    pm_grammar grammar;
    pm_automaton automaton;
    (void)state;
    int32_t rule = begin(&grammar), end = pm_node_return(&grammar);
    int32_t word = pm_rule_new(&grammar, false);
    pm_rule_enter(&grammar, word);
    int32_t letter = pm_node_range(&grammar, 'a', 'a', pm_node_return(&grammar));
    grammar.rules[word].start = letter;
    pm_rule_leave(&grammar, rule);
    int32_t loop = pm_node_split(&grammar);
    pm_way_add(&grammar, loop, pm_node_call(&grammar, word, loop));
    pm_way_add(&grammar, loop, pm_node_call(&grammar, word, pm_node_call(&grammar, word, loop)));
    pm_way_add(&grammar, loop, end);
    assert_int_equal(finish(&grammar, rule, loop), PM_OK);
    assert_int_equal(pm_automaton_init(&automaton, &grammar), PM_OK);
    pm_set set = pm_automaton_start(&automaton, rule, PM_FRAME_END), next;
    for (int i = 0; i < 1000; i++) {
        assert_true(pm_automaton_step(&automaton, &set, 'a', &next));
        set = next;
        pm_automaton_keep(&automaton, &set);
        assert_true(set.done && set.n <= 3 && automaton.n_frames <= 5);
    }
    pm_automaton_free(&automaton);
    pm_grammar_free(&grammar);
}

/* More ways than are followed are an error, not memory without end. */
static void test_limit(void **state)
{
    pm_grammar grammar;
    pm_automaton automaton;
    (void)state;
    int32_t rule = begin(&grammar);
    int32_t many = pm_node_split(&grammar);
    for (int i = 0; i < 40; i++) { /* each returns to another place */
        int32_t after = pm_node_range(&grammar, 'b', 'b', pm_node_return(&grammar));
        pm_way_add(&grammar, many, pm_node_range(&grammar, 'a', 'a', pm_node_call(&grammar, rule, after)));
    }
    pm_way_add(&grammar, many, pm_node_range(&grammar, 'c', 'c', pm_node_return(&grammar)));
    assert_int_equal(finish(&grammar, rule, many), PM_OK);
    assert_int_equal(pm_automaton_init(&automaton, &grammar), PM_OK);
    pm_set set = pm_automaton_start(&automaton, rule, PM_FRAME_END), next;
    int steps = 0;
    while (steps < 100 && pm_automaton_step(&automaton, &set, 'a', &next)) {
        set = next;
        pm_automaton_keep(&automaton, &set);
        steps++;
    }
    assert_in_range(steps, 2, 10);
    assert_int_equal(automaton.status, PM_ERR_LIMIT);
    pm_automaton_free(&automaton);
    pm_grammar_free(&grammar);
}

/* ---- guides ---- */

/* What a guide allows by walking over the vocabulary, against every token tried by itself. */
static void check_allowed(pm_guide *guide, const pm_vocabulary *vocabulary, size_t *n)
{
    pm_automaton *automaton = &guide->automaton;
    *n = 0;
    for (pm_token id = 0; id < vocabulary->vocab; id++) {
        size_t len;
        const char *bytes = pm_vocabulary_bytes(vocabulary, id, &len);
        pm_mark mark = pm_automaton_mark(automaton);
        pm_set set = guide->now, next;
        bool ok = len > 0;
        for (size_t i = 0; ok && i < len; i++) {
            ok = pm_automaton_step(automaton, &set, (uint8_t)bytes[i], &next);
            set = next;
        }
        pm_automaton_release(automaton, mark);
        bool allowed = guide->bits[id / 64] >> (id % 64) & 1;
        if (allowed != ok)
            fail_msg("token %d '%.*s' is %s", (int)id, (int)len, bytes, allowed ? "allowed" : "not allowed");
        *n += allowed;
    }
}

/* Lists of strings of at most 70 letters, in one another: cached masks, tokens that leave rules, counts near their
 * limit and depths near theirs. */
static int32_t build_lists(pm_grammar *grammar)
{
    int32_t list = pm_rule_new(grammar, true), string = pm_rule_new(grammar, false);
    pm_rule_enter(grammar, string);
    int32_t end = pm_node_return(grammar), node = pm_node_bytes(grammar);
    pm_edge_add(grammar, node, 'a', 'z', node);
    pm_edge_add(grammar, node, ' ', ' ', node);
    pm_edges_count(grammar, node, 70);
    pm_edge_enough(grammar, node, '"', 1, end);
    grammar->rules[string].start = pm_node_range(grammar, '"', '"', node);
    pm_rule_enter(grammar, list);
    int32_t close = pm_node_range(grammar, ']', ']', pm_node_return(grammar)), after = pm_node_split(grammar);
    int32_t item = pm_node_either(grammar, pm_node_call(grammar, string, after), pm_node_call(grammar, list, after));
    pm_way_add(grammar, after, close);
    pm_way_add(grammar, after, pm_node_text(grammar, ", ", 2, item));
    grammar->rules[list].start = pm_node_range(grammar, '[', '[', pm_node_either(grammar, item, close));
    return list;
}

static void test_masks(void **state)
{
    pm_tokenizer *tokenizer;
    pm_vocabulary *vocabulary;
    pm_error err;
    pm_grammar grammar;
    pm_guide_masks masks;
    (void)state;
    assert_int_equal(pm_tokenizer_open(&tokenizer, SOURCE_DIR "/models/default", &err), PM_OK);
    int vocab = pm_tokenizer_vocab(tokenizer);
    uint8_t *kinds = calloc((size_t)vocab, 1);
    assert_non_null(kinds);
    assert_int_equal(pm_vocabulary_new(&vocabulary, tokenizer, kinds, vocab, &err), PM_OK);
    free(kinds);
    assert_int_equal(pm_grammar_init(&grammar), PM_OK);
    int32_t list = build_lists(&grammar);
    assert_int_equal(pm_grammar_finish(&grammar, list), PM_OK);
    assert_int_equal(pm_guide_masks_init(&masks, &grammar, vocabulary), PM_OK);
    uint64_t random[4] = {1, 2, 3, 4};
    for (int run = 0; run < 12; run++) {
        pm_guide guide;
        assert_int_equal(pm_guide_init(&guide, &masks, list, &err), PM_OK);
        for (int step = 0; step < 60; step++) {
            size_t n;
            bool refused;
            if (pm_guide_allow(&guide, &err) != PM_OK)
                fail_msg("%s", err.message);
            check_allowed(&guide, vocabulary, &n);
            assert_true(n > 0 || guide.now.done);
            if (n == 0)
                break;
            random[0] = random[0] * 6364136223846793005u + 1442695040888963407u;
            size_t nth = (size_t)(random[0] >> 33) % n;
            pm_token id = 0, open = pm_tokenizer_id(tokenizer, "[");
            for (size_t seen = 0; id < vocab; id++)
                if ((guide.bits[id / 64] >> (id % 64) & 1) && seen++ == nth)
                    break;
            if (run >= 10 && guide.bits[open / 64] >> (open % 64) & 1) /* into the depth */
                id = open;
            assert_int_equal(pm_guide_take(&guide, id, &refused, &err), PM_OK);
            for (int deeper = 0; run == 11 && step == 0 && deeper < PM_DEPTH_MAX - 8; deeper++)
                assert_int_equal(pm_guide_take(&guide, open, &refused, &err), PM_OK);
        }
        pm_guide_free(&guide);
    }
    pm_guide_masks_free(&masks);
    pm_grammar_free(&grammar);
    pm_vocabulary_free(vocabulary);
    pm_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),   cmocka_unit_test(test_depth), cmocka_unit_test(test_endless),
        cmocka_unit_test(test_counts), cmocka_unit_test(test_until), cmocka_unit_test(test_sets_stay_small),
        cmocka_unit_test(test_limit),  cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
