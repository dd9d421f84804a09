/* Chat templates: opening, the origin of special tokens, failures, threads, and damaged sources. What templates render
 * is compared with jinja2 by tests/text/test_template.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/template.h"

static pm_template *compile(const char *source)
{
    pm_template *tmpl = NULL;
    pm_error err = {0};
    if (pm_template_new(&tmpl, "test", source, strlen(source), &err) != PM_OK)
        fail_msg("%s", err.message);
    return tmpl;
}

static void expect(const pm_template *tmpl, const char *json, const char *text, const char *trust)
{
    json_t *vars = json_loads(json, 0, NULL);
    pm_rendered rendered = {0};
    pm_error err = {0};
    assert_non_null(vars);
    if (pm_template_render(tmpl, vars, &rendered, &err) != PM_OK)
        fail_msg("%s", err.message);
    assert_string_equal(rendered.text.data, text);
    assert_int_equal(rendered.trust.len, rendered.text.len);
    for (size_t i = 0; trust && i < rendered.text.len; i++)
        if (rendered.trust.data[i] != trust[i] - '0')
            fail_msg("byte %zu of '%s' has trust %d", i, text, rendered.trust.data[i]);
    pm_rendered_free(&rendered);
    json_decref(vars);
}

/* ---- opening ---- */

static char folder[64], file_path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/pm_template_XXXXXX");
    return mkdtemp(folder) == NULL;
}

static const char *in_folder(const char *name)
{
    snprintf(file_path, sizeof(file_path), "%s/%s", folder, name);
    return file_path;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(in_folder(name), "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int remove_folder(void **state)
{
    (void)state;
    remove(in_folder("chat_template.jinja"));
    remove(in_folder("tokenizer_config.json"));
    return rmdir(folder);
}

static void expect_open(bool tools, const char *text)
{
    pm_template *tmpl = NULL;
    pm_error err = {0};
    if (pm_template_open(&tmpl, folder, tools, &err) != PM_OK)
        fail_msg("%s", err.message);
    assert_non_null(tmpl);
    expect(tmpl, "{}", text, NULL);
    pm_template_free(tmpl);
}

static void expect_no_open(pm_status code, const char *words)
{
    pm_template *untouched = (pm_template *)&code, *tmpl = untouched;
    pm_error err = {0};
    assert_int_equal(pm_template_open(&tmpl, folder, false, &err), code);
    if (!strstr(err.message, folder) || !strstr(err.message, words))
        fail_msg("'%s' does not say '%s' of '%s'", err.message, words, folder);
    assert_ptr_equal(tmpl, untouched);
}

static void test_open(void **state)
{
    (void)state;
    pm_template *tmpl = (pm_template *)folder;
    assert_int_equal(pm_template_open(&tmpl, folder, false, NULL), PM_OK);
    assert_null(tmpl);
    write_file("tokenizer_config.json", "{\"chat_template\": null}");
    tmpl = (pm_template *)folder;
    assert_int_equal(pm_template_open(&tmpl, folder, false, NULL), PM_OK);
    assert_null(tmpl);

    write_file("tokenizer_config.json", "{\"chat_template\": \"a{{ 1 + 1 }}\"}");
    expect_open(false, "a2");
    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"t\"},"
                                        "{\"name\": \"rag\", \"template\": \"{% nonsense\"},"
                                        "{\"name\": \"default\", \"template\": \"d\"}]}");
    expect_open(false, "d");
    expect_open(true, "t");
    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"d\"}]}");
    expect_open(true, "d");
    write_file("chat_template.jinja", "file\n");
    expect_open(true, "file");
}

static void test_open_refused(void **state)
{
    (void)state;
    write_file("tokenizer_config.json", "{\"chat_template\": 5}");
    expect_no_open(PM_ERR_FORMAT, "chat_template");
    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\"}]}");
    expect_no_open(PM_ERR_FORMAT, "chat_template[0]");
    write_file("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}");
    expect_no_open(PM_ERR_UNSUPPORTED, "'default'");
    write_file("tokenizer_config.json", "{\"chat_template\": ");
    expect_no_open(PM_ERR_FORMAT, "tokenizer_config.json");
    write_file("tokenizer_config.json", "{\"chat_template\": \"\\n{% for %}\"}");
    expect_no_open(PM_ERR_FORMAT, "tokenizer_config.json:2:8: ");
    write_file("tokenizer_config.json", "{\"chat_template\": \"{{ x|wordwrap }}\"}");
    expect_no_open(PM_ERR_UNSUPPORTED, ":1:6: filter 'wordwrap'");
    write_file("chat_template.jinja", "a\n\n{% include 'x' %}");
    expect_no_open(PM_ERR_UNSUPPORTED, "chat_template.jinja:3:4: tag 'include'");
    write_file("chat_template.jinja", "a\xff");
    expect_no_open(PM_ERR_FORMAT, "byte 1 is not UTF-8");
}

/* The model's own values count as the template's, and a variable does not replace them. */
static void test_own(void **state)
{
    (void)state;
    pm_template *tmpl = compile("{{ bos_token }}{{ x }}{{ eos_token }}{{ pad_token }}");
    json_t *own = json_pack("{s:s,s:s}", "bos_token", "<s>", "eos_token", "</s>");
    pm_template_own(tmpl, own);
    pm_template_own(tmpl, own);
    expect(tmpl, "{\"x\": \"<s>\"}", "<s><s></s>", "1110001111");
    expect(tmpl, "{\"bos_token\": \"!\", \"pad_token\": \"<p>\"}", "<s></s><p>", "1111111000");
    json_decref(own);
    pm_template_free(tmpl);
}

/* ---- rendering ---- */

static void test_failures(void **state)
{
    (void)state;
    static const struct {
        const char *source;
        pm_status code;
        const char *words;
    } cases[] = {{"\n{{ raise_exception('Roles must alternate') }}", PM_ERR_INVALID, "test:2:19: Roles must alternate"},
                 {"{{ a.b.c }}", PM_ERR_INVALID, "test:1:5: 'a' is undefined"},
                 {"{{ x.y.z }}", PM_ERR_INVALID, "'dict object' has no attribute 'y'"},
                 {"{{ 1 + 'a' }}", PM_ERR_INVALID, "between int and str"},
                 {"{{ 'a' * 999999999 }}", PM_ERR_MEMORY, "64 MB"},
                 {"{{ 9223372036854775807 * 2 }}", PM_ERR_UNSUPPORTED, "64 bits"},
                 {"{% for i in range(9999999) %}{% endfor %}", PM_ERR_INVALID, "range()"}};
    json_t *vars = json_loads("{\"x\": {}}", 0, NULL);
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_template *tmpl = compile(cases[i].source);
        pm_rendered rendered = {.text = {.len = 77}};
        pm_error err = {0};
        assert_int_equal(pm_template_render(tmpl, vars, &rendered, &err), cases[i].code);
        if (!strstr(err.message, cases[i].words))
            fail_msg("'%s' does not say '%s'", err.message, cases[i].words);
        assert_int_equal(rendered.text.len, 77);
        assert_int_equal(pm_template_render(tmpl, vars, &rendered, NULL), cases[i].code);
        pm_template_free(tmpl);
    }
    json_decref(vars);
    pm_template *tmpl = compile("x");
    json_t *list = json_array();
    pm_error err = {0};
    assert_int_equal(pm_template_render(tmpl, list, &(pm_rendered){0}, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "JSON object"));
    assert_int_equal(pm_template_render(tmpl, NULL, &(pm_rendered){0}, &err), PM_ERR_INVALID);
    json_decref(list);
    pm_template_free(tmpl);
    assert_int_equal(pm_template_new(&tmpl, "test", "{{", 2, NULL), PM_ERR_FORMAT);
    pm_template_free(NULL);
}

/* A failed rendering leaves nothing behind for the next one. */
static void test_render_again(void **state)
{
    (void)state;
    pm_template *tmpl = compile("{% if m == 'b' %}{{ raise_exception('no') }}{% endif %}[{{ m }}]");
    json_t *bad = json_pack("{s:s}", "m", "b");
    for (int i = 0; i < 3; i++) {
        expect(tmpl, "{\"m\": \"a\"}", "[a]", "101");
        assert_int_equal(pm_template_render(tmpl, bad, &(pm_rendered){0}, NULL), PM_ERR_INVALID);
    }
    json_decref(bad);
    pm_template_free(tmpl);
}

static void test_odd_values(void **state)
{
    (void)state;
    pm_template *tmpl = compile("{{ s|length }}{{ s }}|{{ s|tojson }}|{{ e }}|{{ e.x is defined }}");
    json_t *vars = json_pack("{s:s%,s:{}}", "s", "a\0b", (size_t)3, "e");
    pm_rendered rendered = {0};
    assert_int_equal(pm_template_render(tmpl, vars, &rendered, NULL), PM_OK);
    static const char want[] = "3a\0b|\"a\\u0000b\"|{}|False";
    assert_int_equal(rendered.text.len, sizeof(want) - 1);
    assert_memory_equal(rendered.text.data, want, sizeof(want));
    pm_rendered_free(&rendered);
    json_decref(vars);
    pm_template_free(tmpl);

    tmpl = compile("");
    expect(tmpl, "{}", "", "");
    pm_template_free(tmpl);
}

/* Data nested deeper than the limit is refused, below it is fine. */
static void test_deep_data(void **state)
{
    (void)state;
    pm_template *tmpl = compile("{{ x|tojson|length }}{{ x == x }}{{ x|string|length }}");
    for (int depth = 500; depth <= 2000; depth += 1500) {
        json_t *x = json_array();
        for (int i = 1; i < depth; i++) {
            json_t *outer = json_array();
            json_array_append_new(outer, x);
            x = outer;
        }
        json_t *vars = json_pack("{s:o}", "x", x);
        pm_rendered rendered = {0};
        pm_error err = {0};
        int status = pm_template_render(tmpl, vars, &rendered, &err);
        assert_int_equal(status, depth == 500 ? PM_OK : PM_ERR_INVALID);
        if (depth == 500)
            assert_string_equal(rendered.text.data, "1000True1000");
        else
            assert_non_null(strstr(err.message, "nested"));
        pm_rendered_free(&rendered);
        json_decref(vars);
    }
    pm_template_free(tmpl);
}

/* ---- threads ---- */

static const char busy[] = "{% macro m(a, b=[]) %}<{{ a|upper }}{{ b|length }}>{% endmacro %}"
                           "{% set ns = namespace(n=0) %}{% for i in range(200) %}{% set ns.n = ns.n + i %}{% endfor %}"
                           "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m('x') if false }}{% endfor %}"
                           "{% for x in messages %}{{ x|tojson }}{{ x.role.split('s')|join('-') }}{% endfor %}"
                           "{{ m(messages[0].role) }}{{ ns.n }}";
static const char busy_vars[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Grüße\"}, {\"role\": \"assistant\"}]}";

typedef struct job {
    const pm_template *tmpl;
    const json_t *vars;
    const char *want;
    int failures;
} job;

static void *render_often(void *arg)
{
    job *j = arg;
    for (int i = 0; i < 100; i++) {
        pm_rendered rendered = {0};
        if (pm_template_render(j->tmpl, j->vars, &rendered, NULL) != PM_OK || strcmp(rendered.text.data, j->want) != 0)
            j->failures++;
        pm_rendered_free(&rendered);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pm_template *tmpl = compile(busy);
    json_t *vars = json_loads(busy_vars, 0, NULL);
    pm_rendered first = {0};
    assert_int_equal(pm_template_render(tmpl, vars, &first, NULL), PM_OK);
    pthread_t threads[THREADS];
    job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){tmpl, vars, first.text.data, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].failures, 0);
    }
    pm_rendered_free(&first);
    json_decref(vars);
    pm_template_free(tmpl);
}

/* ---- damaged sources ---- */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Cuts, repeats or overwrites some bytes of `text`, or inserts a piece of syntax. */
static void mutate(pm_buf *text, uint64_t *random)
{
    static const char *const pieces[] = {"{{",
                                         "}}",
                                         "{%",
                                         "%}",
                                         "{#",
                                         "#}",
                                         "-%}",
                                         "{%-",
                                         "(",
                                         ")",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         "'",
                                         "\"",
                                         "|",
                                         ".",
                                         ",",
                                         ":",
                                         " if ",
                                         "else",
                                         " for ",
                                         " in ",
                                         " is ",
                                         "not ",
                                         "**",
                                         "//",
                                         "~",
                                         "%",
                                         "x",
                                         "1",
                                         "-1",
                                         "1.5",
                                         "none",
                                         "''",
                                         "|tojson",
                                         "|items",
                                         "|join",
                                         "|first",
                                         "|map('upper')",
                                         "|sort",
                                         "|list",
                                         "|groupby('a')",
                                         "|batch(2)",
                                         "|indent",
                                         "[::-1]",
                                         "[1:2:3]",
                                         "loop",
                                         "caller()",
                                         "varargs",
                                         "|format(x)",
                                         "|e|safe",
                                         "\\x4",
                                         "endfor",
                                         "{% endif %}",
                                         "{% raw %}",
                                         "{% set x %}",
                                         "{% endset %}",
                                         "{% break %}",
                                         "\xc3\xa9",
                                         "99999999999",
                                         "= "};
    pm_buf out = {0};
    size_t at = text->len ? next_random(random) % text->len : 0, n = next_random(random) % 5;
    if (n > text->len - at)
        n = text->len - at;
    const char *piece = pieces[next_random(random) % PM_COUNT(pieces)];
    int kind = (int)(next_random(random) % 4);
    int status = pm_buf_add(&out, text->data, at);
    if (kind == 0)
        status |= pm_buf_add(&out, piece, strlen(piece));
    if (kind == 1)
        status |= pm_buf_add(&out, text->data + at, n);
    if (kind == 2)
        status |= pm_buf_add(&out, piece, strlen(piece)) | pm_buf_add(&out, text->data + at + n, text->len - at - n);
    else
        status |= pm_buf_add(&out, text->data + at + (kind == 3 ? n : 0), text->len - at - (kind == 3 ? n : 0));
    assert_int_equal(status, PM_OK);
    pm_buf_free(text);
    *text = out;
}

/* Whatever the source, compiling and rendering end with a text or a message. */
static void test_damaged(void **state)
{
    (void)state;
    enum { SEEDS = 2000 };
    static const char other[] =
        "{%- macro show(x, depth=0) -%}{% if x is mapping %}{% for k, v in x|dictsort %}{{ k }}={{ show(v, depth + 1) "
        "}}"
        "{% endfor %}{% elif x is string %}'{{ x[::-1]|trim|replace('a', 'b') }}'{% else %}{{ '%5.1f|%s' % (1.5, x) }}"
        "{% endif %}{% endmacro %}\n{% raw %}{{ {% endraw %}{# c #}\n  {%- set ns = namespace(a=[1, 2.5, none, true]) "
        "%}"
        "{% call(q) show(tools) %}{{ q }}{% endcall %}{% filter upper|indent(2) %}a\nb{% endfilter %}"
        "{% for t in tools if t.name recursive %}{{ loop.index ~ t.name.title() }}{{ loop(t.sub or []) }}"
        "{{ '{:>5}{}'.format(t.name, loop.previtem) }}{% else %}none{% endfor %}{% set ns.b = "
        "tools[1:]|map(attribute='name') %}"
        "{{ ns.b|join(', ')|tojson(indent=2) }}{{ tools|selectattr('name', 'in', ['f'])|list|length // 2 ** 2 % 3 }}"
        "{% with a = 1, b = tools %}{{ a if b else 'é\\n\\u00e9' }}{% endwith %}{{ (tools|first).name.split('x', "
        "1)[-1] }}";
    const char *const sources[] = {busy, other};
    for (size_t i = 0; i < PM_COUNT(sources); i++)
        pm_template_free(compile(sources[i]));
    json_t *vars =
        json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"Grüße\"}, {\"role\": \"assistant\"}],"
                   "\"tools\": [{\"name\": \"f\", \"a\": [1, {\"b\": null}]}, {\"name\": \"axb\", \"a\": 2.5}]}",
                   0, NULL);
    assert_non_null(vars);
    int rendered_well = 0, compiled = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        uint64_t random = seed * 0x9E3779B97F4A7C15u + 1;
        pm_buf text = {0};
        const char *source = sources[seed % PM_COUNT(sources)];
        pm_template *tmpl = NULL;
        pm_rendered rendered = {0};
        pm_error err = {.message = ""};
        assert_int_equal(pm_buf_add(&text, source, strlen(source)), PM_OK);
        for (uint32_t n = 1 + next_random(&random) % 2; n > 0; n--)
            mutate(&text, &random);
        int status = pm_template_new(&tmpl, "test", text.data, text.len, &err);
        if (status == PM_OK) {
            compiled++;
            status = pm_template_render(tmpl, vars, &rendered, &err);
        }
        if (status == PM_OK) {
            rendered_well++;
            assert_int_equal(rendered.text.len, rendered.trust.len);
            assert_true(pm_utf8_valid(rendered.text.data, rendered.text.len, NULL));
        } else {
            assert_int_equal(err.code, status);
            assert_int_equal(strncmp(err.message, "test:", 5), 0);
        }
        pm_rendered_free(&rendered);
        pm_template_free(tmpl);
        pm_buf_free(&text);
    }
    json_decref(vars);
    /* The damage is neither too large nor too small. */
    assert_in_range(compiled, SEEDS / 10, SEEDS * 9 / 10);
    assert_in_range(rendered_well, SEEDS / 20, SEEDS * 9 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_open_refused, make_folder, remove_folder),
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_render_again),
        cmocka_unit_test(test_odd_values),
        cmocka_unit_test(test_deep_data),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
