/* Schemas and calls of tools as grammars: whatever is asked for is refused or built, and what then is allowed leads on
 * and, where it ends, is JSON.
 *
 * An input is a line with a format of calls, or nothing for a schema, then JSON text, a NUL and bytes that choose. */
#include "files/config.h"
#include "fuzz.h"
#include "text/automaton.h"
#include "text/call_grammar.h"
#include "text/schema.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 400 };

static const pm_call_format *find_format(const char *name, size_t len)
{
    for (size_t i = 0; i < pm_n_call_formats; i++)
        if (strlen(pm_call_formats[i].name) == len && memcmp(pm_call_formats[i].name, name, len) == 0)
            return &pm_call_formats[i];
    return &pm_call_formats[len ? (unsigned char)name[0] % pm_n_call_formats : 0];
}

/* Builds the grammar of a rule; PM_OK when there is one. */
static int build(pm_grammar *grammar, const json_t *json, const char *format, size_t len, int32_t *rule, pm_error *err)
{
    static const pm_marker_texts markers = {0};
    pm_schema_reader reader = {.grammar = grammar, .err = err, .what = "schema", .root = json};
    *rule = pm_rule_new(grammar, false);
    int32_t outer = pm_rule_enter(grammar, *rule), end = pm_node_return(grammar), start;
    if (len) {
        pm_call_language calls = {find_format(format, len), &markers, json, NULL, true};
        start = pm_call_grammar(&reader, &calls, end);
    } else {
        start = pm_schema_value(&reader, json, PM_TYPE_ANY, end);
    }
    if (grammar->status == PM_OK)
        grammar->rules[*rule].start = start;
    pm_rule_leave(grammar, outer);
    int status = pm_schema_finish(&reader);
    pm_schema_free(&reader);
    PM_FUZZ_CHECK(status == PM_OK || *err->message, "an error of code %d without a message", status);
    return status == PM_OK ? pm_grammar_finish(grammar, *rule) : status;
}

/* The n-th of the bytes that may come next, counted round; -1: there is none. */
static int choose(pm_automaton *automaton, const pm_set *set, unsigned n)
{
    int bytes[256], count = 0;
    for (int byte = 0; byte < 256; byte++) {
        pm_mark mark = pm_automaton_mark(automaton);
        pm_set next;
        if (pm_automaton_step(automaton, set, (uint8_t)byte, &next))
            bytes[count++] = byte;
        pm_automaton_release(automaton, mark);
    }
    return count ? bytes[n % (unsigned)count] : -1;
}

/* Takes a way through the grammar. What has come to an end must be JSON when it is to be. */
static void walk(const pm_grammar *grammar, int32_t rule, const uint8_t *choices, size_t n, bool json)
{
    pm_automaton automaton;
    pm_buf text = {0};
    PM_FUZZ_CHECK(pm_automaton_init(&automaton, grammar) == PM_OK, "out of memory");
    pm_set set = pm_automaton_start(&automaton, rule, PM_FRAME_END);
    for (size_t i = 0; i < n && i < STEPS_MAX && automaton.status == PM_OK; i++) {
        pm_set next;
        int byte = choose(&automaton, &set, choices[i]);
        if (automaton.status != PM_OK)
            break;
        PM_FUZZ_CHECK(byte >= 0 || set.done, "nothing may follow '%s'", text.data ? text.data : "");
        if (set.done && json) {
            json_t *value = NULL;
            int status = pm_json_text("answer", text.data ? text.data : "", text.len, &value, NULL);
            json_decref(value);
            bool twice = grammar->keys; /* equal keys are the guide's business */
            PM_FUZZ_CHECK(status == PM_OK || twice, "'%s' is no JSON", text.data ? text.data : "");
        }
        if (byte < 0)
            break;
        PM_FUZZ_CHECK(pm_automaton_step(&automaton, &set, (uint8_t)byte, &next), "byte %d", byte);
        PM_FUZZ_CHECK(pm_buf_add(&text, &(char){(char)byte}, 1) == PM_OK, "out of memory");
        set = next;
        pm_automaton_keep(&automaton, &set);
    }
    pm_buf_free(&text);
    pm_automaton_free(&automaton);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data, *end = size ? memchr(line, '\n', size) : NULL;
    size_t n = end ? (size_t)(end - line) : 0, start = end ? n + 1 : 0, len = size - start;
    const char *text = line + start, *nul = len ? memchr(text, 0, len) : NULL;
    size_t n_json = nul ? (size_t)(nul - text) : len, n_choices = nul ? len - n_json - 1 : 0;
    json_t *json = NULL;
    pm_grammar grammar;
    pm_error err = {0};
    int32_t rule;
    if (pm_json_text("schema", text, n_json, &json, &err) != PM_OK)
        return 0;
    PM_FUZZ_CHECK(pm_grammar_init(&grammar) == PM_OK, "out of memory");
    if (build(&grammar, json, line, n, &rule, &err) == PM_OK && nul)
        walk(&grammar, rule, (const uint8_t *)nul + 1, n_choices, n == 0);
    pm_grammar_free(&grammar);
    json_decref(json);
    return 0;
}
