/* Parsers of answers: what every format's text comes out as, in one piece and cut at any two places. */
#include "text/reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},"
    "\"o\":{\"type\":\"object\"},\"a\":{\"type\":[\"array\",\"null\"]},\"m\":{\"anyOf\":[{\"type\":\"string\"},{"
    "\"type\":"
    "\"null\"}]},\"e\":{\"enum\":[\"1\",\"2\"]},\"x\":{}}}}},{\"name\":\"bare\",\"parameters\":{}}]";

/* The same for tests that make many parsers. */
static const char FEW_TOOLS[] =
    "[{\"name\":\"get\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"}}}},{\"name\":\"bare\"}]";

/* ---- running a parser ---- */

/* Events as text: T(text) R(reasoning) C(name|id|arguments), neighbours of a kind joined. */
typedef struct record {
    pm_buf text;
    pm_event_kind last;
    size_t calls;
} record;

static void add(pm_buf *out, const char *text, size_t len)
{
    assert_int_equal(pm_buf_add(out, text, len), PM_OK);
}

static void on_event(void *user, const pm_event *event)
{
    record *got = user;
    pm_buf *out = &got->text;
    bool plain = event->kind == PM_EVENT_TEXT || event->kind == PM_EVENT_REASONING;
    assert_true(event->len > 0 || event->kind == PM_EVENT_CALL_END);
    if (plain && out->len && got->last == event->kind)
        out->len--; /* goes on */
    else if (plain)
        add(out, event->kind == PM_EVENT_TEXT ? "T(" : "R(", 2);
    if (event->kind == PM_EVENT_CALL) {
        assert_int_equal(event->call, got->calls++);
        add(out, "C(", 2);
    }
    if (!plain)
        assert_int_equal(event->call, got->calls - 1);
    add(out, event->text ? event->text : "", event->len);
    if (event->kind == PM_EVENT_CALL) {
        add(out, "|", 1);
        add(out, event->id ? event->id : "", event->id_len);
        add(out, "|", 1);
    }
    if (plain || event->kind == PM_EVENT_CALL_END)
        add(out, ")", 1);
    got->last = event->kind;
}

static pm_reply_format named(const char *name)
{
    pm_reply_format format = pm_reply_detect("<think>", 7);
    for (size_t i = 0; i < pm_n_call_formats; i++)
        if (strcmp(pm_call_formats[i].name, name) == 0)
            format.calls = &pm_call_formats[i];
    return format;
}

/* The events of text cut at two places; the caller frees them. */
static char *parse(pm_reply_format format, const pm_parser_options *given, const char *text, size_t len, size_t first,
                   size_t second)
{
    pm_parser *parser;
    pm_error err;
    record got = {0};
    pm_parser_options options = *given;
    options.on_event = on_event;
    options.user = &got;
    add(&got.text, "", 0);
    assert_int_equal(pm_reply_new(&parser, format, &options, &err), PM_OK);
    assert_int_equal(pm_parser_feed(parser, text, first, &err), PM_OK);
    assert_int_equal(pm_parser_feed(parser, text + first, second - first, &err), PM_OK);
    assert_int_equal(pm_parser_feed(parser, text + second, len - second, &err), PM_OK);
    assert_int_equal(pm_parser_end(parser, &err), PM_OK);
    pm_parser_free(parser);
    return got.text.data;
}

static void check(pm_reply_format format, const pm_parser_options *options, const char *text, const char *want)
{
    size_t len = strlen(text);
    for (size_t first = 0; first <= len; first++) {
        for (size_t second = first; second <= len; second++) {
            char *got = parse(format, options, text, len, first, second);
            if (strcmp(got, want) != 0)
                fail_msg("%s, cut at %zu and %zu:\n  %s\ngives\n  %s\nand not\n  %s",
                         format.calls ? format.calls->name : "no calls", first, second, text, got, want);
            free(got);
        }
    }
}

typedef struct sample {
    const char *text, *want; /* NULL: it is text as it stands */
} sample;

static void check_all(const char *format, const char *tools, const sample *samples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char same[512];
        snprintf(same, sizeof(same), "T(%s)", samples[i].text);
        check(named(format), &(pm_parser_options){.tools = tools}, samples[i].text,
              samples[i].want ? samples[i].want : same);
    }
}
#define CHECK_ALL(format, tools, samples) check_all(format, tools, samples, PM_COUNT(samples))

/* ---- reasoning ---- */

static void test_reasoning(void **state)
{
    static const struct {
        bool opened;
        const char *text, *want;
    } samples[] = {
        {false, "hello", "T(hello)"},
        {false, " \nhello \n", "T( \nhello \n)"},
        {false, "", ""},
        {false, " \n ", "T( \n )"},
        {false, "<think>r</think>a", "R(r)T(a)"},
        {false, "\n<think>\n r\n\nr \n</think>\n\n  a\n", "R( r\n\nr)T(  a\n)"},
        {false, "<think></think>a", "T(a)"},
        {false, "<think>\n\n</think>\n\na", "T(a)"},
        {false, "<think>r", "R(r)"},
        {false, "<think>r</thi", "R(r</thi)"},
        {false, "<think>r</think>", "R(r)"},
        {false, "<think>r</think>\n \n", "R(r)"},
        {false, "<thin", "T(<thin)"},
        {false, "<<think>r", "T(<<think>r)"},
        {false, "r</think>a", "T(r</think>a)"},
        {false, "Write `<think>` and </think> so.", "T(Write `<think>` and </think> so.)"},
        {false, "<think>a</think>\n<think>b</think>c", "R(ab)T(c)"},
        {true, "r</think>a", "R(r)T(a)"},
        {true, "r", "R(r)"},
        {true, "\n r \n", "R( r \n)"},
        {true, "</think>a", "T(a)"},
        {true, "<think>\nr</think>a", "R(r)T(a)"},
        {true, "a <think> b</think>c", "R(a <think> b)T(c)"},
        {true, "a</think>b</think>c", "R(a)T(b</think>c)"},
        /* An end that is spoken of does not end. */
        {true, "the `</think>` tag</think>a", "R(the `</think>` tag)T(a)"},
        {true, "(\"</think>\") '</think>'\n</think>a", "R((\"</think>\") '</think>')T(a)"},
        {true, "`</think>`</think>a", "R(`</think>`)T(a)"},
        {true, "`x`</think>`y`", "R(`x`)T(`y`)"},
        {true, "say `</think>a", "R(say `)T(a)"},
        {true, "say `</think>", "R(say `)"},
        {true, "x </think>`y`", "R(x)T(`y`)"},
        /* Nor does a call. */
        {true, "<tool_call>{\"name\":\"f\"}</tool_call></think>a", "R(<tool_call>{\"name\":\"f\"}</tool_call>)T(a)"},
    };
    (void)state;
    for (size_t i = 0; i < PM_COUNT(samples); i++)
        check(named("Hermes"), &(pm_parser_options){.reasoning = samples[i].opened}, samples[i].text, samples[i].want);
}

static void test_reasoning_variants(void **state)
{
    static const char *const markers[][2] = {{"<think>", "</think>"},
                                             {"<seed:think>", "</seed:think>"},
                                             {"<longcat_think>", "</longcat_think>"},
                                             {"[THINK]", "[/THINK]"}};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(markers); i++) {
        char text[128];
        snprintf(text, sizeof(text), "%sr%sa", markers[i][0], markers[i][1]);
        check(pm_reply_detect(markers[i][1], strlen(markers[i][1])), &(pm_parser_options){0}, text, "R(r)T(a)");
        check((pm_reply_format){0}, &(pm_parser_options){.reasoning = true}, "<think>r</think>", "T(<think>r</think>)");
    }
}

static void test_opened(void **state)
{
    static const struct {
        const char *prompt;
        int theirs; /* bytes at the end that a message wrote */
        bool want;
    } samples[] = {{"<|assistant|><think>", 0, true},
                   {"<|assistant|>\n<think>\n", 0, true},
                   {"<|assistant|><think>\n", 3, false},
                   {"<|assistant|><think></think>\n", 0, false},
                   {"<|assistant|>", 0, false},
                   {"", 0, false},
                   {"think>", 0, false},
                   {"<think>", 0, true}};
    (void)state;
    for (size_t i = 0; i < PM_COUNT(samples); i++) {
        size_t len = strlen(samples[i].prompt);
        char trust[64];
        memset(trust, 1, sizeof(trust));
        memset(trust + len - samples[i].theirs, 0, (size_t)samples[i].theirs);
        assert_int_equal(pm_reply_opened(named("GLM"), samples[i].prompt, trust, len), samples[i].want);
        assert_false(pm_reply_opened((pm_reply_format){0}, samples[i].prompt, trust, len));
    }
}

/* ---- calls ---- */

static void test_hermes(void **state)
{
    static const sample samples[] = {
        {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"s\": \"x\"}}\n</tool_call>", "C(get||{\"s\": \"x\"})"},
        {"a \n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\n b", "T(a)C(f||{})T( b)"},
        {"<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>\n",
         "C(f||{})C(f||{})"},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>-<tool_call>{\"name\":\"g\"}</tool_call>",
         "C(f||{})T(-)C(g||{})"},
        {"<think>r</think>\n<tool_call>{\"id\":\"7\",\"arguments\":{\"a\":[{\"b\":{}}]},\"name\":\"f\"}</tool_call>",
         "R(r)C(f|7|{\"a\":[{\"b\":{}}]})"},
        /* Arguments as their text; escapes and numbers stay as they were written. */
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>", "C(f||{\"a\":1})"},
        {"<tool_call>{\"name\":\"\\u0066\",\"parameters\":{\"a\":\"\\u00e9\\ud83d\\ude00\",\"b\":1.50}}</tool_call>",
         "C(f||{\"a\":\"\\u00e9\\ud83d\\ude00\",\"b\":1.50})"},
        /* Markers in strings. */
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"}</tool_call>\\\"<tool_call>\"}}</tool_call>.",
         "C(f||{\"a\":\"}</tool_call>\\\"<tool_call>\"})T(.)"},
        /* What is no call. */
        {"Use <tool_call> or </tool_call>.", NULL},
        {"<tool_call>", NULL},
        {"<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_cal", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{}} x</tool_call>", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call>", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":\"no\"}</tool_call>", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\u0000\"}}</tool_call>", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}</tool_call>", NULL},
        {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\ud800\"}}</tool_call>", NULL},
        {"<tool_call>{\"name\":1,\"arguments\":{}}</tool_call>", NULL},
        {"<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>", NULL},
        {"<tool_call>{\"arguments\":{}}</tool_call>", NULL},
        {"<tool_call>{\"name\":\"f\",}</tool_call>", NULL},
        {"<tool_call>{'name':'f'}</tool_call>", NULL},
        {"<tool_call></tool_call>", NULL},
        /* What follows one that is malformed is not lost with it. */
        {"<tool_call>{\"name\":\"f\" oops}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
         "T(<tool_call>{\"name\":\"f\" oops}</tool_call>)C(g||{})"},
        {"<tool_call>{\"name\":\"f<tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
         "T(<tool_call>{\"name\":\"f<tool_call>)C(g||{})"},
        {"<tool_call><tool_call>{\"name\":\"g\"}</tool_call>", "T(<tool_call>)C(g||{})"},
    };
    (void)state;
    CHECK_ALL("Hermes", NULL, samples);
}

static void test_llama(void **state)
{
    static const sample samples[] = {
        {"{\"name\": \"get\", \"parameters\": {\"s\": \"}\"}}", "C(get||{\"s\": \"}\"})"},
        {"\n<|python_tag|>{\"name\": \"bare\", \"arguments\": {}}\n", "C(bare||{})"},
        {"{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"get\", \"parameters\": {\"i\": 1}}",
         "C(get||{})C(get||{\"i\": 1})"},
        {"{\"name\": \"get\", \"parameters\": {}}; then", "C(get||{})T(; then)"},
        {"{\"name\": \"other\", \"parameters\": {}}", NULL},
        {"{\"name\": \"get\"}", NULL},
        {"{\"name\": \"get\", \"parameters\": {}", NULL},
        {"{}", NULL},
        {"[1]", NULL},
        {"See {\"name\": \"get\", \"parameters\": {}}", NULL},
        {"<|python_tag|>print(1)", NULL},
        {"<|python_tag|>", NULL},
    };
    static const sample without[] = {{"{\"name\": \"any\", \"parameters\": {}}", "C(any||{})"}};
    (void)state;
    CHECK_ALL("Llama 3", FEW_TOOLS, samples);
    CHECK_ALL("Llama 3", NULL, without);
}

static void test_lists(void **state)
{
    static const sample nemotron[] = {
        {"<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": \"]</TOOLCALL>\"}}, {\"name\": \"g\"}]</TOOLCALL>\n",
         "C(f||{\"a\": \"]</TOOLCALL>\"})C(g||{})"},
        {"a\n<TOOLCALL> [ {\"name\": \"f\", \"arguments\": \"{}\"} ] </TOOLCALL>b", "T(a)C(f||{})T(b)"},
        {"<TOOLCALL>[]</TOOLCALL>", NULL},
        {"<TOOLCALL>[{\"name\": \"f\"}, 1]</TOOLCALL>", NULL},
        {"<TOOLCALL>[{\"name\": \"f\"}", NULL},
    };
    static const sample mistral[] = {
        {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}]",
         "C(f|abcdefghi|{\"a\": 1})"},
        {"[[TOOL_CALLS] [{\"name\": \"f\"}]", "T([)C(f||{})"},
    };
    static const sample granite[] = {{"<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "C(f||{})"}};
    static const sample apriel[] = {{"\n<tool_calls>[{\"name\": \"f\", \"arguments\": {}}]</tool_calls>", "C(f||{})"}};
    (void)state;
    CHECK_ALL("Nemotron", NULL, nemotron);
    CHECK_ALL("Mistral Nemo", NULL, mistral);
    CHECK_ALL("Granite", NULL, granite);
    CHECK_ALL("Apriel", NULL, apriel);
}

static void test_named(void **state)
{
    static const sample kimi[] = {
        {"a<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{\"s\": \"x\"}"
         "<|tool_call_end|><|tool_call_begin|>functions.a.b-c:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
         "<|tool_calls_section_end|>b",
         "T(a)C(get|functions.get:0|{\"s\": \"x\"})C(a.b-c|functions.a.b-c:12|{})T(b)"},
        {"<|tool_call_begin|>get<|tool_call_argument_begin|>{}<|tool_call_end|>", "C(get|get|{})"},
        {"<|tool_calls_section_begin|>\n<|tool_calls_section_end|>", NULL},
        {"<|tool_calls_section_begin|>a", NULL},
        {"<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{}{}<|tool_call_end|>", NULL},
    };
    static const sample v3[] = {
        {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"s\": \"\\n```\"}\n```"
         "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         "C(get||{\"s\": \"\\n```\"})C(f||{})"},
        {"<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>", NULL},
        {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n{}<｜tool▁call▁end｜>", NULL},
    };
    static const sample v31[] = {
        {"a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"s\": "
         "\"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜>"
         "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "T(a)C(get||{\"s\": \"<｜tool▁call▁end｜>\"})C(f||{})"},
        {"<｜tool▁call▁begin｜>get<｜tool▁sep｜>[]<｜tool▁call▁end｜>", NULL},
        {"<｜tool▁calls▁end｜>", NULL},
        {"<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜>x<｜tool▁calls▁end｜>",
         "C(get||{})T(x<｜tool▁calls▁end｜>)"},
    };
    static const sample mistral[] = {
        {"[TOOL_CALLS]get[CALL_ID]123456789[ARGS]{\"s\": \"[ARGS]\"}[TOOL_CALLS]f[ARGS]{}",
         "C(get|123456789|{\"s\": \"[ARGS]\"})C(f||{})"},
        {"[TOOL_CALLS]get[", NULL},
        {"[TOOL_CALLS]get it", NULL},
    };
    (void)state;
    CHECK_ALL("Kimi K2", NULL, kimi);
    CHECK_ALL("DeepSeek V3", NULL, v3);
    CHECK_ALL("DeepSeek V3.1", NULL, v31);
    CHECK_ALL("Mistral", NULL, mistral);
}

static void test_python(void **state)
{
    static const sample samples[] = {
        {"<|tool_call_start|>[get(s=\"x\", i=-1)]<|tool_call_end|>", "C(get||{\"s\": \"x\", \"i\": -1})"},
        {"a<|tool_call_start|>[f(), a.b(x=[1, (2, 3)], y={'k': None, \"l\": True},), ]<|tool_call_end|>b",
         "T(a)C(f||{})C(a.b||{\"x\": [1, [2, 3]], \"y\": {\"k\": null, \"l\": true}})T(b)"},
        {"<|tool_call_start|>[f(a='it\\'s \"q\"\\n', b=\"\\u00e9\\x41\\ud83d\\ude00\\q\", c='a' 'b')]<|tool_call_end|>",
         "C(f||{\"a\": \"it's \\\"q\\\"\\n\", \"b\": \"éA😀\\\\q\", \"c\": \"ab\"})"},
        {"<|tool_call_start|>[f(a=.5, b=+1_000, c=2., d=1e3, e=true, g=null)]<|tool_call_end|>",
         "C(f||{\"a\": 0.5, \"b\": 1000, \"c\": 2.0, \"d\": 1e3, \"e\": true, \"g\": null})"},
        {"<|tool_call_start|>[f(a=\")]<|tool_call_end|>\")]<|tool_call_end|>",
         "C(f||{\"a\": \")]<|tool_call_end|>\"})"},
        {"<|tool_call_start|>[ {\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]<|tool_call_end|>",
         "C(f||{\"a\": \"]\"})"},
        {"<|tool_call_start|>[]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(1)]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a=1 b=2)]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a=01)]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a=g())]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a=\"\\ud800\")]<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a=1)]", NULL},
        {"<|tool_call_start|>f(a=1)<|tool_call_end|>", NULL},
        {"<|tool_call_start|>[f(a={1: 2})]<|tool_call_end|>", NULL},
    };
    (void)state;
    CHECK_ALL("LFM2", NULL, samples);
}

static void test_qwen_xml(void **state)
{
    static const sample samples[] = {
        {"a\n\n<tool_call>\n<function=get>\n<parameter=s>\n1\n</parameter>\n<parameter=i>\n2\n</parameter>\n</"
         "function>\n"
         "</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
         "T(a)C(get||{\"s\": \"1\", \"i\": 2})C(f||{})"},
        {"<tool_call><function=get><parameter=s>\n\n x\n\n</parameter></function></tool_call>",
         "C(get||{\"s\": \"\\n x\\n\"})"},
        {"<tool_call><function=get><parameter=s></parameter><parameter=o></parameter></function></tool_call>",
         "C(get||{\"s\": \"\", \"o\": \"\"})"},
        /* Markers in a value. */
        {"<tool_call><function=get><parameter=s>\n</parameter>\n</function> </parameter></tool_call>\n</parameter>"
         "</function></tool_call>",
         "T(<tool_call><function=get><parameter=s>\n</parameter>\n</function> </parameter></tool_call>\n</parameter>"
         "</function></tool_call>)"},
        {"<tool_call><function=get><parameter=s>\n<a></parameter> "
         "</b></tool_call>\n</parameter>\n</function></tool_call>",
         "C(get||{\"s\": \"<a></parameter> </b></tool_call>\"})"},
        {"<tool_call><function=get><parameter=s>\n</parameter></parameter>\n</parameter></function></tool_call>",
         "C(get||{\"s\": \"</parameter></parameter>\"})"},
        {"<tool_call><function=f><parameter=s>1</parameter><parameter=s>2</parameter></function></tool_call>", NULL},
        {"<tool_call><function=f><parameter=s>1</function></tool_call>", NULL},
        {"<tool_call><function=f><parameter=s>1</parameter></function>", NULL},
        {"<tool_call><function=></function></tool_call>", NULL},
        {"<tool_call>{\"name\": \"f\"}</tool_call>", NULL},
    };
    (void)state;
    CHECK_ALL("Qwen3-Coder", FEW_TOOLS, samples);
}

static void test_other_xml(void **state)
{
    static const sample glm[] = {
        {"<tool_call>get\n<arg_key>s</arg_key>\n<arg_value>1\n</arg_value>\n<arg_key>i</arg_key>\n<arg_value>2</"
         "arg_value>\n"
         "</tool_call>\n<tool_call>f\n</tool_call>",
         "C(get||{\"s\": \"1\\n\", \"i\": 2})C(f||{})"},
        {"<tool_call>f<arg_key>a b</arg_key><arg_value></arg_value> </tool_call>", "C(f||{\"a b\": \"\"})"},
        {"<tool_call>get<arg_key>s</arg_key><arg_value></arg_value>.</tool_call></arg_value></tool_call>",
         "C(get||{\"s\": \"</arg_value>.</tool_call>\"})"},
        {"<tool_call> is a tag", NULL},
        {"<tool_call>f<arg_key>a</arg_key></tool_call>", NULL},
    };
    static const sample dsml[] = {
        {"a\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"p\" string=\"true\">1 "
         "</｜DSML｜"
         "parameter>\n<｜DSML｜parameter name=\"q\" string=\"false\">[1, "
         "\"x\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
         "<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
         "T(a)C(f||{\"p\": \"1 \", \"q\": [1, \"x\"]})C(g||{})"},
        {"<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"p\" "
         "string=\"false\">\"1\"</｜DSML｜parameter><｜DSML｜parameter "
         "name=\"q\" string=\"false\">no</｜DSML｜parameter></｜DSML｜invoke>",
         "C(f||{\"p\": \"1\", \"q\": \"no\"})"},
        {"<｜DSML｜function_calls>\n</｜DSML｜function_calls>", NULL},
    };
    static const sample v4[] = {
        {"<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", "C(f||{})"}};
    static const sample seed[] = {
        {"\n<seed:tool_call>\n<function=get>\n<parameter=s>1\n</parameter>\n</function>\n</seed:tool_call>",
         "C(get||{\"s\": \"1\\n\"})"}};
    static const sample minimax[] = {{"\n<minimax:tool_call>\n<invoke name=\"get\"><parameter "
                                      "name=\"i\">1</parameter>\n</invoke>\n</minimax:tool_call>",
                                      "C(get||{\"i\": 1})"}};
    (void)state;
    CHECK_ALL("GLM", FEW_TOOLS, glm);
    CHECK_ALL("DeepSeek V3.2", NULL, dsml);
    CHECK_ALL("DeepSeek V4", NULL, v4);
    CHECK_ALL("Seed", FEW_TOOLS, seed);
    CHECK_ALL("MiniMax M2", FEW_TOOLS, minimax);
}

/* ---- types ---- */

static void test_types(void **state)
{
    static const struct {
        const char *key, *value, *want;
    } samples[] = {
        {"s", "1", "\"1\""},
        {"s", "null", "\"null\""},
        {"s", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
        {"s", "\"q\"\t\\", "\"\\\"q\\\"\\t\\\\\""},
        {"s", "True", "\"True\""},
        {"i", "1", "1"},
        {"i", " 1 ", "1"},
        {"i", "2.0", "2.0"},
        {"i", "one", "\"one\""},
        {"i", "2.5", "2.5"},
        {"n", "2", "2"},
        {"n", "2.5e3", "2.5e3"},
        {"b", "true", "true"},
        {"b", "True", "true"},
        {"b", "False", "false"},
        {"b", "yes", "\"yes\""},
        {"o", "{\"a\": [1, {}]}", "{\"a\": [1, {}]}"},
        {"o", "{'a': [True, None]}", "{\"a\": [true, null]}"},
        {"o", "{'a': f()}", "\"{'a': f()}\""},
        {"a", "[1, \"x\"]", "[1, \"x\"]"},
        {"a", "('x',)", "[\"x\"]"},
        {"a", "None", "null"},
        {"a", "null", "null"},
        {"m", "null", "null"},
        {"m", "1", "\"1\""},
        {"e", "2", "\"2\""},
        /* Of these the schema says nothing. */
        {"x", "5", "5"},
        {"x", "05", "\"05\""},
        {"x", "true", "true"},
        {"x", "True", "true"},
        {"x", "\"x\"", "\"\\\"x\\\"\""},
        {"x", "{\"a\": 1}", "{\"a\": 1}"},
        {"x", "(1, 2)", "\"(1, 2)\""},
        {"x", "some text", "\"some text\""},
        {"unknown", "1", "1"},
        {"unknown", "Truely", "\"Truely\""},
    };
    (void)state;
    for (size_t i = 0; i < PM_COUNT(samples); i++) {
        char text[256], want[256];
        snprintf(text, sizeof(text), "<tool_call>get<arg_key>%s</arg_key><arg_value>%s</arg_value></tool_call>",
                 samples[i].key, samples[i].value);
        snprintf(want, sizeof(want), "C(get||{\"%s\": %s})", samples[i].key, samples[i].want);
        pm_parser_options options = {.tools = TOOLS};
        char *got = parse(named("GLM"), &options, text, strlen(text), 0, 0);
        if (strcmp(got, want) != 0)
            fail_msg("%s = %s: %s", samples[i].key, samples[i].value, got);
        free(got);
    }
}

/* ---- answers that were cut ---- */

/* The events of the first n bytes of an answer that was cut there; the caller frees them. */
static char *parse_cut(pm_reply_format format, const pm_parser_options *given, const char *text, size_t n)
{
    pm_parser *parser;
    pm_error err;
    record got = {0};
    pm_parser_options options = *given;
    options.on_event = on_event;
    options.user = &got;
    add(&got.text, "", 0);
    assert_int_equal(pm_reply_new(&parser, format, &options, &err), PM_OK);
    assert_int_equal(pm_parser_feed(parser, text, n, &err), PM_OK);
    assert_int_equal(pm_parser_cut(parser, &err), PM_OK);
    pm_parser_free(parser);
    return got.text.data;
}

/* Answers with two calls, of every kind of pattern. A ^ stands behind the first marker, and behind what makes the first
 * and the second call whole. */
static const struct {
    const char *format, *text;
} cut_samples[] = {
    {"Hermes", "Look.<tool_call>^\n{\"name\":\"get\",\"arguments\":{\"s\":\"a]\"}}^\n</tool_call>\n<tool_call>"
               "{\"name\":\"get\",\"arguments\":{\"s\":\"b\"}}^</tool_call>"},
    {"Qwen3-Coder", "Look.<tool_call>^\n<function=get>\n<parameter=s>\na]\n</parameter>\n</function>^\n</tool_call>"
                    "<tool_call><function=get><parameter=s>b</parameter></function>^</tool_call>"},
    {"GLM", "Look.<tool_call>^get<arg_key>s</arg_key><arg_value>a]</arg_value></tool_call>^"
            "<tool_call>get<arg_key>s</arg_key><arg_value>b</arg_value></tool_call>^"},
    {"DeepSeek V3.1",
     "Look.<｜tool▁calls▁begin｜>^<｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"s\":\"a]\"}^<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"s\":\"b\"}^<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"MiniMax M2", "Look.<minimax:tool_call>^\n<invoke name=\"get\"><parameter name=\"s\">a]</parameter></invoke>^\n"
                   "<invoke name=\"get\"><parameter name=\"s\">b</parameter></invoke>^</minimax:tool_call>"},
    {"Nemotron", "Look.<TOOLCALL>^[{\"name\":\"get\",\"arguments\":{\"s\":\"a]\"}}^, "
                 "{\"name\":\"get\",\"arguments\":{\"s\":\"b\"}}^]</TOOLCALL>"},
    {"LFM2", "Look.<|tool_call_start|>^[get(s=\"a]\")^, get(s='b')^]<|tool_call_end|>"},
    {"Mistral", "Look.[TOOL_CALLS]^get[CALL_ID]000000001[ARGS]{\"s\":\"a]\"}^[TOOL_CALLS]get[ARGS]{\"s\":\"b\"}^"},
};

/* Takes the marks out of a sample. */
static void unmark(const char *text, char out[1024], size_t places[3])
{
    size_t n = 0, found = 0;
    for (; *text; text++) {
        if (*text != '^')
            out[n++] = *text;
        else
            places[found++] = n;
    }
    out[n] = '\0';
    assert_int_equal(found, 3);
}

/* Wherever an answer is cut: what is whole is a call, and nothing of another one is text. */
static void test_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < PM_COUNT(cut_samples); i++) {
        pm_reply_format format = named(cut_samples[i].format);
        char text[1024], want[1024];
        size_t places[3];
        unmark(cut_samples[i].text, text, places);
        for (size_t n = 0; n <= strlen(text); n++) {
            snprintf(want, sizeof(want), n < places[0] ? "%s%.*s%s" : "T(Look.)", n ? "T(" : "", (int)n, text,
                     n ? ")" : "");
            bool named_id = strstr(text, "[CALL_ID]") != NULL;
            for (int call = 1; call <= 2 && n >= places[call]; call++)
                snprintf(want + strlen(want), 64, "C(get|%s|{\"s\"%s\"%s\"})", named_id && call == 1 ? "000000001" : "",
                         strchr(text, '{') ? ":" : ": ", call == 1 ? "a]" : "b");
            char *got = parse_cut(format, &(pm_parser_options){.tools = TOOLS}, text, n);
            if (strcmp(got, want) != 0)
                fail_msg("%s, cut after\n  %.*s\ngives\n  %s\nand not\n  %s", cut_samples[i].format, (int)n, text, got,
                         want);
            free(got);
        }
    }
}

/* Without a marker JSON may be the answer, unless nothing but calls can be; reasoning and text stay. */
static void test_cut_without_calls(void **state)
{
    static const struct {
        const char *format, *text, *want;
        bool only_calls;
    } samples[] = {
        {"Llama 3", "{\"name\": \"get\", \"para", "T({\"name\": \"get\", \"para)", false},
        {"Llama 3", "{\"name\": \"get\", \"para", "", true},
        {"Llama 3", "<|python_tag|>{\"name\": \"get\"", "", false},
        {"Hermes", "<tool_", "T(<tool_)", false},
        {"Hermes", "<tool_", "", true},
        {"Hermes", "<think>so</thi", "R(so</thi)", true},
        {"Hermes", "a < b \n", "T(a < b \n)", false},
        {"Hermes", "", "", true},
        {"Nemotron", "a <TOOLCALL>[{\"name\": 5}, {", "T(a)", false},
        {"Nemotron", "a <TOOLCALL>[", "T(a)", false},
    };
    (void)state;
    for (size_t i = 0; i < PM_COUNT(samples); i++) {
        pm_parser_options options = {.tools = TOOLS, .only_calls = samples[i].only_calls};
        char *got = parse_cut(named(samples[i].format), &options, samples[i].text, strlen(samples[i].text));
        assert_string_equal(got, samples[i].want);
        free(got);
    }
}

/* ---- the table of formats ---- */

static void test_detect(void **state)
{
    static const struct {
        const char *source, *calls;
        bool reasoning;
    } samples[] = {
        {"{{ '<think>' }}<tool_call>\n<function=", "Qwen3-Coder", true},
        {"<tool_call>{\"name\"", "Hermes", false},
        {"</think><arg_key> <tool_call>", "GLM", true},
        {"｜DSML｜ ... tool_calls>", "DeepSeek V4", false},
        {"｜DSML｜ ... function_calls>", "DeepSeek V3.2", false},
        {"<｜tool▁call▁begin｜>'+x", "DeepSeek V3.1", false},
        {"<｜tool▁call▁begin｜>```json", "DeepSeek V3", false},
        {"plain", NULL, false},
        {"", NULL, false},
    };
    (void)state;
    for (size_t i = 0; i < PM_COUNT(samples); i++) {
        pm_reply_format format = pm_reply_detect(samples[i].source, strlen(samples[i].source));
        const char *got = format.calls ? format.calls->name : "none";
        if (strcmp(got, samples[i].calls ? samples[i].calls : "none") != 0)
            fail_msg("%s: %s", samples[i].source, got);
        assert_int_equal(format.reasoning != NULL, samples[i].reasoning);
    }
}

/* What the reader takes for granted: a marker's first byte does not come again in it, and of the two literals of a
 * choice neither begins the other. */
static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < pm_n_call_formats; i++) {
        const pm_call_format *row = &pm_call_formats[i];
        const char *markers[] = {row->open, row->close, row->call};
        for (size_t k = 0; k < PM_COUNT(markers); k++) {
            size_t n = markers[k] ? strcspn(markers[k], "%") : 0;
            if (n > 1 && memchr(markers[k] + 1, markers[k][0], n - 1))
                fail_msg("%s: '%s' has its first byte twice", row->name, markers[k]);
            assert_true(n < 64);
        }
        const char *group = strstr(row->call, "%("), *rest = group ? strstr(group, "%)") : NULL;
        assert_true(!group == !rest);
        size_t n = group ? strcspn(group + 2, "%") : 0, m = group ? strcspn(rest + 2, "%") : 0;
        if (group && (!n || !m || strncmp(group + 2, rest + 2, n < m ? n : m) == 0))
            fail_msg("%s: the literals of its choice", row->name);
        for (const char *value = strpbrk(row->call, "%"); value; value = strchr(value + 2, '%'))
            if (value[1] == 'v' || value[1] == 'V')
                assert_null(memchr(value + 3, value[2], strcspn(value + 3, "%")));
    }
}

static void test_markers(void **state)
{
    (void)state;
    assert_true(pm_reply_marker(named("Kimi K2"), "<|tool_call_begin|>"));
    assert_true(pm_reply_marker(named("Kimi K2"), "<|tool_calls_section_end|>"));
    assert_true(pm_reply_marker(named("DeepSeek V3.2"), "｜DSML｜"));
    assert_true(pm_reply_marker(named("LFM2"), "</think>"));
    assert_false(pm_reply_marker(named("LFM2"), "<|im_end|>"));
    assert_false(pm_reply_marker(named("LFM2"), ""));
    assert_false(pm_reply_marker((pm_reply_format){0}, "<think>"));
}

/* ---- options ---- */

static void test_options(void **state)
{
    static const char call[] = "<tool_call>{\"name\":\"f\"}</tool_call>";
    pm_parser *parser;
    pm_error err;
    (void)state;
    check(named("Hermes"), &(pm_parser_options){.no_calls = true}, call, "T(<tool_call>{\"name\":\"f\"}</tool_call>)");
    check(named("Hermes"), &(pm_parser_options){.tools = "null"}, call, "C(f||{})");
    check((pm_reply_format){0}, &(pm_parser_options){.reasoning = true}, call,
          "T(<tool_call>{\"name\":\"f\"}</tool_call>)");
    assert_int_equal(pm_reply_new(&parser, named("GLM"), &(pm_parser_options){.tools = "[1"}, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "tools"));
    assert_int_equal(pm_reply_new(&parser, named("GLM"), &(pm_parser_options){.tools = "{}"}, &err), PM_ERR_INVALID);
    assert_string_equal(err.message, "tools is not a list");
}

/* No event function: nothing is given out, and nothing breaks. */
static void test_no_events(void **state)
{
    pm_parser *parser;
    pm_error err;
    (void)state;
    assert_int_equal(pm_reply_new(&parser, named("GLM"), &(pm_parser_options){0}, &err), PM_OK);
    assert_int_equal(pm_parser_feed(parser, "<think>a</think>b<tool_call>f</tool_call>", 41, &err), PM_OK);
    assert_int_equal(pm_parser_end(parser, &err), PM_OK);
    pm_parser_free(parser);
    pm_parser_free(NULL);
}

static void test_message(void **state)
{
    char *text;
    pm_error err;
    static const char answer[] =
        "r\n</think>\n\na\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\","
        "\"id\":\"x\",\"arguments\":{\"q\":\"\\\"\"}}</tool_call>";
    (void)state;
    pm_parser_options options = {.reasoning = true};
    assert_int_equal(pm_reply_message(named("Hermes"), &options, answer, strlen(answer), &text, &err), PM_OK);
    assert_string_equal(text, "{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\",\"tool_calls\":["
                              "{\"id\":\"call00000\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                              "\"{}\"}},{\"id\":\"x\",\"type\":\"function\",\"function\":{\"name\":\"g\","
                              "\"arguments\":\"{\\\"q\\\":\\\"\\\\\\\"\\\"}\"}}]}");
    free(text);
    assert_int_equal(pm_reply_message(named("Hermes"), &(pm_parser_options){0}, "", 0, &text, &err), PM_OK);
    assert_string_equal(text, "{\"role\":\"assistant\",\"content\":\"\"}");
    free(text);
    assert_int_equal(pm_reply_message(named("Hermes"), &options, "a\xff", 2, &text, &err), PM_ERR_INVALID);
    assert_string_equal(err.message, "the answer is not UTF-8 at byte 1");
}

/* ---- limits ---- */

/* The number of bytes that come out of `n` times `unit` between `head` and `tail`, fed in pieces of `piece` bytes. */
static size_t text_of_long(const char *format, const char *head, const char *unit, size_t n, const char *tail,
                           size_t piece, size_t *calls, double *seconds)
{
    pm_buf text = {0};
    record got = {0};
    pm_parser *parser;
    pm_error err;
    pm_parser_options options = {.on_event = on_event, .user = &got};
    add(&text, head, strlen(head));
    for (size_t i = 0; i < n; i++)
        add(&text, unit, strlen(unit));
    add(&text, tail, strlen(tail));
    clock_t start = clock();
    assert_int_equal(pm_reply_new(&parser, named(format), &options, &err), PM_OK);
    for (size_t at = 0; at < text.len; at += piece)
        assert_int_equal(pm_parser_feed(parser, text.data + at, text.len - at < piece ? text.len - at : piece, &err),
                         PM_OK);
    assert_int_equal(pm_parser_end(parser, &err), PM_OK);
    *seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    *calls = got.calls;
    size_t len = got.text.len;
    pm_parser_free(parser);
    pm_buf_free(&text);
    pm_buf_free(&got.text);
    return len;
}

/* Texts made to cost much: time grows with their length only, and nothing is lost. */
static void test_linear(void **state)
{
    static const struct {
        const char *format, *head, *unit, *tail;
    } samples[] = {
        {"Hermes", "", "<tool_call>", ""},
        {"Hermes", "", "<tool_call>{\"a\":", ""},
        {"Hermes", "<tool_call>{\"a\":\"", "</tool_call>", ""},
        {"Hermes", "<tool_call>", "{\"a\":", ""},
        {"Hermes", "<tool_call>", "[", ""},
        {"Hermes", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"", "x", "\"}} "},
        {"Hermes", "a", " \n", ""},
        {"Hermes", "<tool_call>", " ", ""},
        {"Qwen3-Coder", "<tool_call><function=f><parameter=a>", "</parameter>", ""},
        {"Qwen3-Coder", "<tool_call><function=f><parameter=a>", "</parameter> </functio", ""},
        {"Qwen3-Coder", "<tool_call><function=f><parameter=a></parameter>", " ", "x"},
        {"Qwen3-Coder", "<tool_call><function=f>", "<parameter=a>1</parameter>", ""},
        {"GLM", "", "<tool_call>f<arg_key>k</arg_key>", ""},
        {"LFM2", "<|tool_call_start|>[f(a=", "(", ""},
        {"LFM2", "<|tool_call_start|>[f(a=\"", "\\x41", "\")"},
        {"Kimi K2", "", "<|tool_calls_section_begin|>", ""},
        {"Llama 3", "{\"name\":\"f\",\"parameters\":{\"a\":\"", "{", ""},
    };
    (void)state;
    for (size_t i = 0; i < PM_COUNT(samples); i++) {
        size_t whole = 600000, n = whole / strlen(samples[i].unit), calls;
        double small, large;
        size_t length = strlen(samples[i].head) + strlen(samples[i].tail);
        size_t got = text_of_long(samples[i].format, samples[i].head, samples[i].unit, n / 8, samples[i].tail, 1000,
                                  &calls, &small);
        assert_int_equal(got, 3 + length + n / 8 * strlen(samples[i].unit)); /* "T(" and ")" */
        got =
            text_of_long(samples[i].format, samples[i].head, samples[i].unit, n, samples[i].tail, 1000, &calls, &large);
        assert_int_equal(calls, 0);
        assert_int_equal(got, 3 + length + n * strlen(samples[i].unit));
        if (large > 0.3 && large > 24 * small) /* eight times as long */
            fail_msg("%s%s...: %g s, an eighth of it %g s", samples[i].head, samples[i].unit, large, small);
    }
}

/* The beginnings of a call: its pattern up to each of its parts, with an example of what stands there. Arguments are
 * begun, and whole where the pattern goes on. Returns how many. */
static size_t beginnings(const char *pattern, char out[][400])
{
    static const struct {
        char code;
        const char *begun, *rest;
    } examples[] = {{'n', "f", ""},
                    {'i', "functions.f:0", ""},
                    {'d', "abcdefghi", ""},
                    {'k', "a", ""},
                    {'t', "false", ""},
                    {'v', "x", ""},
                    {'V', "\nx", "\n"},
                    {'a', "{\"a\":\"", "\"}"},
                    {'c', "{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}"},
                    {'l', "[{\"name\":\"f\",\"arguments\":{\"a\":\"", "\"}}]"},
                    {'p', "[f(a=\"", "\")]"}};
    char text[400] = "";
    size_t count = 1;
    out[0][0] = 0;
    for (const char *at = pattern; *at; at += 2) {
        size_t n = strcspn(at, "%");
        strncat(text, at, n);
        at += n;
        const char *rest = "";
        for (size_t i = 0; *at && i < PM_COUNT(examples); i++) {
            if (examples[i].code != at[1])
                continue;
            strcat(text, examples[i].begun);
            rest = examples[i].rest;
        }
        if (*at == 0)
            break; /* the call is whole */
        if (strcmp(out[count - 1], text) != 0)
            strcpy(out[count++], text);
        strcat(text, rest);
    }
    return count;
}

/* The processor time that the parser takes for a long text, which comes out as it is. */
static double time_of_text(const char *format, const char *head, const char *unit, size_t len, size_t piece)
{
    double seconds;
    size_t calls, n = len / strlen(unit);
    size_t got = text_of_long(format, head, unit, n, "", piece, &calls, &seconds);
    size_t want = 3 + strlen(head) + n * strlen(unit); /* "T(" and ")" */
    if (calls || got != want)
        fail_msg("%s: %s and %zu times %s: %zu calls, and %zu bytes of %zu", format, head, n, unit, calls, got, want);
    return seconds;
}

/* Wherever a call breaks off, and whatever follows without an end, in one piece or in tokens: nothing is lost, and
 * four times the text does not take eight times as long. */
static void test_every_format_is_linear(void **state)
{
    char heads[32][400];
    (void)state;
    for (size_t i = 0; i < pm_n_call_formats; i++) {
        const pm_call_format *row = &pm_call_formats[i];
        const char *value = strpbrk(row->call, "vV"), *last = strrchr(row->call, '%');
        char opener[64], ending[64], closer[64] = "";
        snprintf(opener, sizeof(opener), "%.*s", (int)strcspn(row->call, "%"), row->call);
        snprintf(ending, sizeof(ending), "%s", last + 2);
        ending[*ending ? strlen(ending) - 1 : 0] = 0;
        if (value && value[-1] == '%')
            snprintf(closer, sizeof(closer), "%.*s", (int)strcspn(value + 1, "%"), value + 1);
        const char *units[] = {"x", "<", "\\\"", "{\"a\":", "[", opener, ending, closer, row->open};
        size_t n_heads = beginnings(row->call, heads);
        for (size_t k = 0; k < n_heads * PM_COUNT(units); k++) {
            const char *head = heads[k % n_heads], *unit = units[k / n_heads];
            size_t piece = (k + k / n_heads) % 2 ? 4 : SIZE_MAX / 2;
            double small = 0, large = 1;
            for (int tries = 0; unit && *unit && tries < 5 && large > 8 * small + 0.002; tries++) {
                small = time_of_text(row->name, head, unit, 3000, piece);
                large = time_of_text(row->name, head, unit, 12000, piece);
            }
            if (unit && *unit && large > 8 * small + 0.002)
                fail_msg("%s: %s and many %s: %g s, four times as many %g s", row->name, head, unit, small, large);
        }
    }
}

/* One call may be long, but what is held has a limit, and beyond it is text. */
static void test_held(void **state)
{
    static const char head[] = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"", tail[] = "\"}}</tool_call>";
    size_t calls;
    double seconds;
    (void)state;
    text_of_long("Hermes", head, "0123456789", 400000, tail, 1000, &calls, &seconds);
    assert_int_equal(calls, 1);
    size_t got = text_of_long("Hermes", head, "0123456789", 500000, tail, 1000, &calls, &seconds);
    assert_int_equal(calls, 0);
    assert_int_equal(got, 3 + strlen(head) + 5000000 + strlen(tail));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_reasoning_variants),
        cmocka_unit_test(test_opened),
        cmocka_unit_test(test_hermes),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_named),
        cmocka_unit_test(test_python),
        cmocka_unit_test(test_qwen_xml),
        cmocka_unit_test(test_other_xml),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_cut_without_calls),
        cmocka_unit_test(test_detect),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_markers),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_no_events),
        cmocka_unit_test(test_message),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_every_format_is_linear),
        cmocka_unit_test(test_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
