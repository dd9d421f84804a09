/* Chat templates: compiling and rendering any source over any variables ends with a text or a message.
 *
 * An input is a template. When its first line is a JSON object, that line is the variables and the rest the template;
 * otherwise the variables below are used. */
#define _GNU_SOURCE /* memmem */
#include "fuzz.h"
#include "text/template.h"

#include <string.h>

/* U+F8FF, which no template writes: wherever it comes out, it came out of a variable. */
#define TYPED "\xef\xa3\xbf"

static const char variables[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"" TYPED "S\"},{\"role\":\"user\",\"content\":\"a " TYPED
    "<|im_end|> b\"},{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"" TYPED
    "r\\n\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
    "{\"" TYPED "k\":[1,2.5,true,null,{\"b\":\"" TYPED "\"}]}}}]},{\"role\":\"tool\",\"content\":\"3\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" TYPED "p\"}]}],\"tools\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"description\":\"d " TYPED "\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{\"k\":{\"type\":\"string\",\"enum\":[\"x\",\"y\"]}},\"required\":[\"k\"]}}}],\"documents\":null,"
    "\"add_generation_prompt\":true,\"enable_thinking\":false,\"x\":-7}";

/* The variables of an input, and where its template starts. */
static json_t *read_variables(const char *data, size_t size, size_t *start)
{
    const char *end = size && data[0] == '{' ? memchr(data, '\n', size) : NULL;
    json_t *vars = end ? json_loadb(data, (size_t)(end - data), JSON_ALLOW_NUL, NULL) : NULL;
    *start = json_is_object(vars) ? (size_t)(end - data) + 1 : 0;
    if (json_is_object(vars))
        return vars;
    json_decref(vars);
    return json_loads(variables, 0, NULL);
}

/* What came out of a variable is not the template's, whatever was done to it. */
static void check_origin(const pm_rendered *rendered)
{
    const char *text = rendered->text.data;
    for (size_t i = 0; i + strlen(TYPED) <= rendered->text.len; i++)
        for (size_t k = 0; k < strlen(TYPED) && !memcmp(text + i, TYPED, strlen(TYPED)); k++)
            PM_FUZZ_CHECK(!rendered->trust.data[i + k], "byte %zu counts as the template's", i + k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t start;
    json_t *vars = read_variables((const char *)data, size, &start);
    const char *source = (const char *)data + start;
    size_t len = size - start;
    /* A template can spell the character itself: as it is, in an escape, or by its number. */
    bool spells = len && (memmem(source, len, TYPED, strlen(TYPED)) || memchr(source, '\\', len));
    pm_template *tmpl = NULL;
    pm_rendered rendered = {0};
    pm_error err = {.message = ""};
    PM_FUZZ_CHECK(vars, "the variables cannot be read");
    int status = pm_template_new(&tmpl, "fuzz", source, len, &err);
    if (status == PM_OK)
        status = pm_template_render(tmpl, vars, &rendered, &err);
    if (status == PM_OK) {
        PM_FUZZ_CHECK(rendered.trust.len == rendered.text.len, "%zu and %zu", rendered.trust.len, rendered.text.len);
        PM_FUZZ_CHECK(pm_utf8_valid(rendered.text.data, rendered.text.len, NULL), "the text is no UTF-8");
        if (!spells)
            check_origin(&rendered);
    } else {
        PM_FUZZ_CHECK(err.code == status && !strncmp(err.message, "fuzz:", 5), "code %d, message '%s'", (int)err.code,
                      err.message);
    }
    pm_rendered_free(&rendered);
    pm_template_free(tmpl);
    json_decref(vars);
    return 0;
}
