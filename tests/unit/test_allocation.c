/* When memory runs out: whichever request fails first, the answer is that there is no memory, and nothing is lost.
 * The program is linked with --wrap, so that the library's requests come through here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
