/* When memory runs out: whichever request fails first, the answer is that there is no memory, and nothing is lost.
 * The program is linked with --wrap, so that the library's requests come through here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "text/call_grammar.h"
#include "text/guide.h"
#include "text/template.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static long left = -1; /* requests that still succeed; below 0: all do */
static bool once;      /* only one fails */

/* Whether the next request fails. */
static bool refuse(void)
{
    if (left < 0)
        return false;
    if (left > 0) {
        left--;
        return false;
    }
    left = once ? -1 : 0;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return refuse() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return refuse() ? NULL : __real_realloc(p, n);
}

/* ---- chat templates ---- */

static const char source[] =
    "{%- macro show(x, depth=0) -%}{% if x is mapping %}{% for k, v in x|dictsort %}{{ k }}={{ show(v, depth + 1) }}"
    "{% endfor %}{% elif x is string %}'{{ x[::-1]|trim|replace('a', 'b')|upper }}'{% else %}{{ '%5.1f|%s' % (1.5, x) "
    "}}"
    "{% endif %}{% endmacro %}{% raw %}{{ {% endraw %}{# c #}{%- set ns = namespace(a=[1, 2.5, none, true]) %}"
    "{{ show(tools) }}{% macro w() %}{{ caller(1) }}{% endmacro %}{% call(q) w() %}{{ q }}{% endcall %}{% filter "
    "upper|indent(2) %}a\nb{% endfilter %}"
    "{% for t in tools if t.name recursive %}{{ loop.index ~ t.name.title() }}{{ loop(t.sub or []) }}"
    "{{ '{:>5}{}'.format(t.name, loop.previtem) }}{% else %}none{% endfor %}{% set ns.b = "
    "tools[1:]|map(attribute='name') %}"
    "{{ ns.b|join(', ')|tojson(indent=2) }}{{ tools|selectattr('name', 'in', ['f'])|list|length // 2 ** 2 % 3 }}"
    "{% with a = 1, b = tools %}{{ a if b else 'é\\n\\u00e9' }}{% endwith %}{{ (tools|first).name.split('x', 1)[-1] }}"
    "{{ range(3000)|map('string')|unique|join }}{{ 'x' * 100000 }}{{ tools|groupby('name')|list|length }}{{ "
    "tools|tojson }}";

static void test_template(void **state)
{
    (void)state;
    json_t *vars = json_loads(
        "{\"tools\": [{\"name\": \"f\", \"a\": [1, {\"b\": null}]}, {\"name\": \"axb\", \"a\": 2.5}]}", 0, NULL);
    assert_non_null(vars);
    long failures = 0;
    for (int mode = 0; mode < 2; mode++) {
        int status = PM_ERR_MEMORY;
        for (long n = 0; status != PM_OK; n++) {
            pm_template *untouched = (pm_template *)&n, *tmpl = untouched;
            pm_rendered rendered = {.text = {.len = 77}};
            pm_error err = {.message = ""};
            left = n;
            once = mode == 1;
            status = pm_template_new(&tmpl, "test", source, strlen(source), &err);
            bool compiled = status == PM_OK;
            if (compiled)
                status = pm_template_render(tmpl, vars, &rendered, &err);
            left = -1;
            if (status != PM_OK) {
                failures++;
                if (status != PM_ERR_MEMORY || err.code != PM_ERR_MEMORY || strcmp(err.message, "out of memory") != 0)
                    fail_msg("request %ld refused: code %d, '%s'", n, status, err.message);
                assert_true(compiled || tmpl == untouched);
                assert_int_equal(rendered.text.len, 77);
            } else {
                pm_rendered_free(&rendered);
            }
            if (compiled)
                pm_template_free(tmpl);
        }
    }
    assert_true(failures > 40);
    json_decref(vars);
}

/* ---- constrained answers ---- */

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"^(x|[^y-z\\\\s]{2,3})+$\", "
    "\"maxLength\": 9}, \"\u00e9\": {\"enum\": [\"b\", 2.5, {\"c\": []}]}, \"n\": {\"type\": \"number\", \"minimum\": "
    "-0.5}, "
    "\"r\": {\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"array\", \"items\": {\"type\": \"string\"}, \"minItems\": "
    "2}]}}, "
    "\"required\": [\"a\", \"o\"], \"additionalProperties\": {\"type\": \"integer\"}}";
static const char tools[] =
    "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"s\": {\"type\": "
    "\"string\"}, \"l\": {\"type\": \"string\", \"maxLength\": 3}, \"o\": {\"$ref\": \"#\"}}}}]";

/* The grammar of the schema, or of the tools in a format that writes arguments one by one. */
static int build_grammar(pm_grammar *grammar, const json_t *json, bool calls, int32_t *rule, pm_error *err)
{
    char *texts[] = {(char *)"<tool_call>"};
    pm_marker_texts markers = {texts, 1};
    pm_schema_reader reader = {.grammar = grammar, .err = err, .what = "schema", .root = json};
    size_t format = 0;
    while (strcmp(pm_call_formats[format].name, "Qwen3-Coder") != 0)
        format++;
    pm_call_language language = {&pm_call_formats[format], &markers, json, NULL, true};
    *rule = pm_rule_new(grammar, false);
    int32_t outer = pm_rule_enter(grammar, *rule), end = pm_node_return(grammar);
    int32_t start = calls ? pm_call_grammar(&reader, &language, end) : pm_schema_value(&reader, json, PM_TYPE_ANY, end);
    if (grammar->status == PM_OK)
        grammar->rules[*rule].start = start;
    pm_rule_leave(grammar, outer);
    int status = pm_schema_finish(&reader);
    pm_schema_free(&reader);
    if (status == PM_OK && (status = pm_grammar_finish(grammar, *rule)) != PM_OK)
        pm_fail_memory(err);
    return status;
}

/* Follows an answer for some tokens: always the last one that is allowed. */
static int follow(pm_guide *guide, pm_error *err)
{
    int status = PM_OK;
    for (int step = 0; step < 40 && status == PM_OK; step++) {
        pm_token id = guide->masks->vocabulary->vocab - 1;
        bool refused;
        status = pm_guide_allow(guide, err);
        while (id >= 0 && !(guide->bits[id / 64] >> (id % 64) & 1))
            id--;
        if (id < 0)
            break;
        if (status == PM_OK)
            status = pm_guide_take(guide, id, &refused, err);
    }
    return status;
}

static int constrain(const json_t *json, bool calls, const pm_vocabulary *vocabulary, pm_error *err)
{
    pm_grammar grammar;
    pm_guide_masks masks;
    pm_guide guide;
    int32_t rule;
    int status = pm_grammar_init(&grammar);
    if (status != PM_OK)
        return pm_fail_memory(err);
    status = build_grammar(&grammar, json, calls, &rule, err);
    if (status == PM_OK && (status = pm_guide_masks_init(&masks, &grammar, vocabulary)) != PM_OK)
        pm_fail_memory(err);
    else if (status == PM_OK) {
        status = pm_guide_init(&guide, &masks, rule, err);
        if (status == PM_OK) {
            status = follow(&guide, err);
            pm_guide_free(&guide);
        }
        pm_guide_masks_free(&masks);
    }
    pm_grammar_free(&grammar);
    return status;
}

static void test_constraint(void **state)
{
    pm_tokenizer *tokenizer;
    pm_vocabulary *vocabulary;
    pm_error err;
    (void)state;
    assert_int_equal(pm_tokenizer_open(&tokenizer, SOURCE_DIR "/models/default", &err), PM_OK);
    uint8_t kinds[300] = {0};
    int status = PM_ERR_MEMORY;
    for (long n = 0; status != PM_OK; n++) {
        left = n;
        status = pm_vocabulary_new(&vocabulary, tokenizer, kinds, 300, &err);
        left = -1;
        assert_true(status == PM_OK || (status == PM_ERR_MEMORY && err.code == PM_ERR_MEMORY));
    }
    for (int mode = 0; mode < 4; mode++) {
        bool calls = mode / 2, whole = false;
        json_t *json = json_loads(calls ? tools : schema, 0, NULL);
        long failures = 0;
        assert_non_null(json);
        for (long n = 0; !whole; n++) {
            left = n;
            once = mode % 2 == 1;
            status = constrain(json, calls, vocabulary, &err);
            whole = left > 0; /* all requests were answered, and one more would have been */
            left = -1;
            failures += status != PM_OK;
            if (status != PM_OK && (status != PM_ERR_MEMORY || err.code != PM_ERR_MEMORY))
                fail_msg("request %ld refused: code %d, '%s'", n, status, err.message);
        }
        assert_int_equal(status, PM_OK);
        assert_true(failures > 20);
        json_decref(json);
    }
    pm_vocabulary_free(vocabulary);
    pm_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_template), cmocka_unit_test(test_constraint)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
