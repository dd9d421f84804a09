/* Chat requests: what becomes of them on the way to a template, and what is refused. */
#include "engine/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The variables for a request, as compact JSON in order. */
static char *variables(const pm_chat *chat)
{
    json_t *out = NULL;
    pm_error err = {0};
    if (pm_chat_variables(chat, &out, &err) != PM_OK)
        fail_msg("%s", err.message);
    char *text = json_dumps(out, JSON_COMPACT);
    json_decref(out);
    return text;
}

static void expect_messages(const char *messages, const char *want)
{
    char *text = variables(&(pm_chat){.messages = messages}), *expected = NULL;
    pm_buf buf = {0};
    pm_buf_printf(&buf,
                  "{\"messages\":%s,\"tools\":null,\"documents\":null,"
                  "\"add_generation_prompt\":true}",
                  want);
    expected = buf.data;
    assert_string_equal(text, expected);
    free(text);
    pm_buf_free(&buf);
}

static void test_messages(void **state)
{
    const char *plain = "[{\"role\":\"user\",\"content\":\"a\\nb\"},{\"role\":\"assistant\",\"content\":\"\"}]";
    (void)state;
    expect_messages(plain, plain);
    /* parts are joined in order, without anything between them; a list of one is as the text itself */
    expect_messages("[{\"role\":\"user\",\"content\":[\"A\",{\"type\":\"text\",\"text\":\"B\"}]}]",
                    "[{\"role\":\"user\",\"content\":\"AB\"}]");
    expect_messages("[{\"role\":\"user\",\"content\":[]}]", "[{\"role\":\"user\",\"content\":\"\"}]");
    /* unknown fields are the template's business */
    expect_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\"}]",
                    "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\",\"thinking\":\"r\"}]");
    /* reasoning by any of its names; nulls are left out */
    expect_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\",\"tool_calls\":null}]",
                    "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"r\",\"reasoning_content\":\"r\","
                    "\"thinking\":\"r\"}]");
    expect_messages("[{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":\"t\",\"reasoning_content\":null}]",
                    "[{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":\"t\",\"reasoning_content\":\"t\"}]");
    expect_messages("[{\"role\":\"user\",\"content\":\"a\",\"name\":null}]", "[{\"role\":\"user\",\"content\":\"a\"}]");
}

static void test_tool_calls(void **state)
{
    (void)state;
    expect_messages(
        "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{\\\"b\\\":1,\\\"a\\\":[2.50]}\"}}]},{\"role\":\"tool\",\"content\":\"x\"}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
        "\"arguments\":{\"b\":1,\"a\":[2.5]}}}]},{\"role\":\"tool\",\"content\":\"x\"}]");
    expect_messages(
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}]",
        "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}]}]");
}

static void test_tools_and_variables(void **state)
{
    pm_chat chat = {.messages = "[{\"role\":\"user\",\"content\":\"q\"}]",
                    .tools = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"name\":\"g\"}]",
                    .variables = "{\"enable_thinking\":false}",
                    .no_generation_prompt = true};
    char *text = variables(&chat);
    (void)state;
    assert_string_equal(text, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],"
                              "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"name\":\"g\"}],"
                              "\"documents\":null,"
                              "\"add_generation_prompt\":false,\"enable_thinking\":false}");
    free(text);
    chat.tools = "[]"; /* is none */
    text = variables(&chat);
    assert_non_null(strstr(text, "\"tools\":null"));
    free(text);
}

static void refused(pm_chat chat, pm_status code, const char *words)
{
    json_t *out = NULL;
    pm_error err = {0};
    int status = pm_chat_variables(&chat, &out, &err);
    if (status != (int)code || !strstr(err.message, words))
        fail_msg("%s: status %d, '%s', wanted %d and '%s'", chat.messages ? chat.messages : "no messages", status,
                 err.message, code, words);
    assert_null(out);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *messages;
        pm_status code;
        const char *words;
    } cases[] = {
        {NULL, PM_ERR_INVALID, "messages is missing"},
        {"", PM_ERR_INVALID, "messages"},
        {"[{", PM_ERR_INVALID, "messages"},
        {"[]", PM_ERR_INVALID, "messages is empty"},
        {"null", PM_ERR_INVALID, "messages is not a list"},
        {"5", PM_ERR_INVALID, "messages is not a list"},
        {"{}", PM_ERR_INVALID, "messages is not a list"},
        {"[5]", PM_ERR_INVALID, "messages[0] is not an object"},
        {"[{}]", PM_ERR_INVALID, "messages[0].role is missing"},
        {"[{\"role\":5,\"content\":\"\"}]", PM_ERR_INVALID, "messages[0].role is missing"},
        {"[{\"role\":\"usr\",\"content\":\"\"}]", PM_ERR_INVALID, "messages[0].role is 'usr'"},
        {"[{\"role\":\"user\"}]", PM_ERR_INVALID, "messages[0].content is missing"},
        {"[{\"role\":\"user\",\"content\":null}]", PM_ERR_INVALID, "messages[0].content is missing"},
        {"[{\"role\":\"user\",\"content\":5}]", PM_ERR_INVALID, "messages[0].content is neither"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", PM_ERR_UNSUPPORTED,
         "image_url"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", PM_ERR_INVALID,
         "messages[0].content[0].text is missing"},
        {"[{\"role\":\"user\",\"content\":[5]}]", PM_ERR_INVALID, "messages[0].content[0].type is missing"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[]}]", PM_ERR_INVALID, "messages[0].content is missing"},
        {"[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":5}]", PM_ERR_INVALID, "tool_calls is not a list"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", PM_ERR_INVALID,
         "messages[0].tool_calls[0].function.name is missing"},
    };
    static const char *const arguments[] = {"\"[1]\"", "\"\\\"x\\\"\"", "\"{bad\"", "\" \"", "[1]", "7"};
    const char *fine = "[{\"role\":\"user\",\"content\":\"\"}]";
    (void)state;
    for (size_t i = 0; i < PM_COUNT(cases); i++)
        refused((pm_chat){.messages = cases[i].messages}, cases[i].code, cases[i].words);
    for (size_t i = 0; i < PM_COUNT(arguments); i++) {
        pm_buf buf = {0};
        pm_buf_printf(&buf,
                      "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":%s}}]}]",
                      arguments[i]);
        refused((pm_chat){.messages = buf.data}, PM_ERR_INVALID, "messages[0].tool_calls[0].function.arguments is n");
        pm_buf_free(&buf);
    }
    refused((pm_chat){.messages = fine, .tools = "{}"}, PM_ERR_INVALID, "tools is not a list");
    refused((pm_chat){.messages = fine, .tools = "["}, PM_ERR_INVALID, "tools");
    refused((pm_chat){.messages = fine, .tools = "[5]"}, PM_ERR_INVALID, "tools[0] is not an object");
    refused((pm_chat){.messages = fine, .tools = "[{\"name\":\"f\"},null]"}, PM_ERR_INVALID,
            "tools[1] is not an object");
    refused((pm_chat){.messages = fine, .tools = "[{}]"}, PM_ERR_INVALID, "tools[0].name is missing");
    refused((pm_chat){.messages = fine, .tools = "[{\"name\":\"\"}]"}, PM_ERR_INVALID, "tools[0].name is missing");
    refused((pm_chat){.messages = fine, .tools = "[{\"type\":\"function\"}]"}, PM_ERR_INVALID,
            "tools[0].name is missing");
    refused((pm_chat){.messages = fine, .tools = "[{\"function\":{\"name\":7}}]"}, PM_ERR_INVALID,
            "tools[0].function.name is missing");
    refused((pm_chat){.messages = fine, .tools = "[{\"name\":\"f\",\"function\":\"f\"}]"}, PM_ERR_INVALID,
            "tools[0].function is not an object");
    refused((pm_chat){.messages = fine, .variables = "[]"}, PM_ERR_INVALID, "variables is not an object");
    refused((pm_chat){.messages = fine, .variables = "{\"messages\":[]}"}, PM_ERR_INVALID, "variables.messages has");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_tool_calls),
        cmocka_unit_test(test_tools_and_variables),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
