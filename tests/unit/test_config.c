/* src/files: JSON files, config.json, quantisation settings, stop tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/checkpoint.h"
#include "files/config.h"

static char directory[] = "config-XXXXXX";
static char config_path[64];

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(config_path, sizeof(config_path), "%s/config.json", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(config_path);
    return rmdir(directory);
}

static void write_config(const char *text, size_t len)
{
    FILE *f = fopen(config_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* Opens a directory whose config.json is `text`. */
static pm_config *open_text(const char *text)
{
    pm_config *config = NULL;
    pm_error err = {0};
    write_config(text, strlen(text));
    if (pm_config_open(&config, directory, &err) != PM_OK)
        fail_msg("%s: %s", text, err.message);
    return config;
}

/* Fails unless the message has every one of the given parts (NULL ends them). */
static void expect_parts(const char *label, const pm_error *err, ...)
{
    va_list parts;
    va_start(parts, err);
    for (const char *part; (part = va_arg(parts, const char *));)
        if (!strstr(err->message, part))
            fail_msg("%s: '%s' does not mention '%s'", label, err->message, part);
    va_end(parts);
}

/* ---- JSON ---- */

static void test_json_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "line 1"},
        {"{", "line 1"},
        {"{\"a\": 1,\n\n \"b\" 2}", "line 3"},
        {"{\"a\": 1}\n x", "line 2"},
        {"{\"a\": 1,\n\"a\": 2}", "line 2"}, /* twice the same key */
        {"[1, 2]", "object"},
        {"3", "object"},
        {"NaN", "object"},
        {"{\"a\": \"\xff\"}", "line 1"},
        {"{\"a\": \"\xed\xa0\x80\"}", "line 1"},
        {"{\"a\": \"\\ud800\"}", "line 1"},
        {"{\"a\": \"x\\u0000y\"}", "line 1: a text has a NUL character"},
        {"{\"x\\u0000y\": 1}", "line 1"},
        {"{\"a\": 99999999999999999999}", "line 1"},
        {"{\"a\": NaNs}", "line 1"},
        {"{\"a\": -NaN}", "line 1"},
        {"{\"a\": --Infinity}", "line 1"},
        {"{\"a\": Infinit}", "line 1"},
        {"{\"a\": 1Infinity}", "line 1"},
        {"{NaN: 1}", "line 1"},
        {"{\"a\": nan}", "line 1"},
        {"{\"a\": \"b\" Infinity}", "line 1"},
        {"{\"a\": 'b'}", "line 1"},
        {"\xef\xbb\xbf{}", "line 1"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        json_t *root = (json_t *)&cases, *before = root;
        pm_error err = {0};
        write_config(cases[i].text, strlen(cases[i].text));
        int status = pm_json_file(config_path, 0, &root, &err);
        if (status != PM_ERR_FORMAT || root != before)
            fail_msg("%s: status %d", cases[i].text, status);
        expect_parts(cases[i].text, &err, config_path, cases[i].part, NULL);
    }
}

static void test_json_limits(void **state)
{
    (void)state;
    json_t *root = NULL;
    pm_error err = {0};
    write_config("{\"a\": 1}", 8);
    assert_int_equal(pm_json_file(config_path, 7, &root, &err), PM_ERR_LIMIT);
    expect_parts("limit", &err, config_path, NULL);
    assert_int_equal(pm_json_file(config_path, 8, &root, &err), PM_OK);
    json_decref(root);
    root = NULL;

    enum { DEPTH = 200000 };
    char *deep = malloc(DEPTH);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    write_config(deep, DEPTH);
    assert_int_equal(pm_json_file(config_path, 0, &root, &err), PM_ERR_FORMAT);
    expect_parts("deep", &err, config_path, "depth", NULL);
    assert_int_equal(pm_json_text("messages", deep, DEPTH, &root, &err), PM_ERR_INVALID);
    expect_parts("deep", &err, "messages", "depth", NULL);
    free(deep);

    unlink(config_path);
    assert_int_equal(pm_json_file(config_path, 0, &root, &err), PM_ERR_IO);
    expect_parts("absent", &err, config_path, NULL);
    assert_null(root);
}

static void test_json_text(void **state)
{
    (void)state;
    json_t *root = NULL;
    pm_error err = {0};
    assert_int_equal(pm_json_text("tools", "[{\"a\": \"é\"}, 2]trailing", 16, &root, &err), PM_OK);
    assert_int_equal(json_array_size(root), 2);
    json_decref(root);
    static const char *const any[] = {"3", "\"s\"", "true", "null", " {} "};
    for (size_t i = 0; i < PM_COUNT(any); i++) {
        assert_int_equal(pm_json_text("tools", any[i], strlen(any[i]), &root, &err), PM_OK);
        json_decref(root);
    }
    root = NULL;
    assert_int_equal(pm_json_text("tools", "[1,\n2", 5, &root, &err), PM_ERR_INVALID);
    expect_parts("text", &err, "tools", "line 2", NULL);
    assert_int_equal(pm_json_text("tools", "", 0, &root, &err), PM_ERR_INVALID);
    assert_int_equal(pm_json_text("tools", "[1] 2", 5, &root, NULL), PM_ERR_INVALID);
    assert_null(root);
}

static void test_json_bare_numbers(void **state)
{
    (void)state;
    json_t *root = NULL;
    pm_error err = {0};
    const char *text = "{\"v\":[NaN,Infinity , -Infinity\n,-5,\"Infinity\",{\"__float__\":\"-Infinity\"},1e3,7],\n"
                       "\"s\":\"NaN, -Infinity, \\\"NaN\\\" \\\\\",\"Infinity\":NaN}";
    if (pm_json_text("numbers", text, strlen(text), &root, &err) != PM_OK)
        fail_msg("%s", err.message);
    static const double expected[] = {NAN, INFINITY, -INFINITY, -5, INFINITY, -INFINITY, 1000, 7};
    const json_t *list = json_object_get(root, "v");
    assert_int_equal(json_array_size(list), PM_COUNT(expected));
    for (size_t i = 0; i < PM_COUNT(expected); i++) {
        double value = 0.5;
        assert_true(pm_json_number(json_array_get(list, i), &value));
        if (isnan(expected[i]) ? !isnan(value) : value != expected[i])
            fail_msg("element %zu is %g instead of %g", i, value, expected[i]);
    }
    assert_string_equal(json_string_value(json_object_get(root, "s")), "NaN, -Infinity, \"NaN\" \\");
    double value = 0.5;
    assert_true(pm_json_number(json_object_get(root, "Infinity"), &value));
    assert_true(isnan(value));
    json_decref(root);

    static const char *const none[] = {
        "\"nan\"", "\"5\"", "true", "null", "[1]", "{\"__float__\":\"x\"}", "{\"__float__\":\"NaN\",\"a\":1}"};
    for (size_t i = 0; i < PM_COUNT(none); i++) {
        assert_int_equal(pm_json_text("none", none[i], strlen(none[i]), &root, &err), PM_OK);
        value = 0.5;
        if (pm_json_number(root, &value) || value != 0.5)
            fail_msg("%s is taken for a number", none[i]);
        json_decref(root);
    }
    assert_false(pm_json_number(NULL, &value));
}

static long allocations_left;

static void *limited_malloc(size_t n)
{
    return allocations_left-- > 0 ? malloc(n) : NULL;
}

/* Parsing with the n-th allocation failing, for every n: an error each time, and usually the right one (jansson takes
 * some for a bad token). */
static void test_json_no_memory(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\":[1,2.5,\"\\u00e9\",{\"b\":null,\"c\":1,\"d\":2,\"e\":3,\"f\":4,\"g\":5,\"h\":6}]}";
    json_malloc_t old_malloc;
    json_free_t old_free;
    json_t *root = NULL;
    int status = PM_ERR_MEMORY, named = 0, n = 0;
    json_get_alloc_funcs(&old_malloc, &old_free);
    json_set_alloc_funcs(limited_malloc, free);
    for (; status != PM_OK && n < 1000; n++) {
        pm_error err = {0};
        allocations_left = n;
        status = pm_json_text("text", text, strlen(text), &root, &err);
        named += status == PM_ERR_MEMORY;
        if (status != PM_OK && (root || !*err.message))
            break;
    }
    json_decref(root);
    json_set_alloc_funcs(old_malloc, old_free);
    assert_int_equal(status, PM_OK);
    if (n < 20 || named < n / 2)
        fail_msg("%d of %d failures named memory", named, n);
}

/* ---- config.json ---- */

static void test_config_open(void **state)
{
    (void)state;
    pm_config *config = NULL;
    pm_error err = {0};
    assert_int_equal(pm_config_open(&config, "no-such-directory", &err), PM_ERR_IO);
    expect_parts("directory", &err, "no-such-directory/config.json", NULL);
    write_config("{\"text_config\": 5}", 18);
    assert_int_equal(pm_config_open(&config, directory, &err), PM_ERR_FORMAT);
    expect_parts("text_config", &err, config_path, "text_config", NULL);
    assert_null(config);
    config = open_text("{\"text_config\": null, \"a\": 3}");
    assert_ptr_equal(config->root, config->text);
    assert_string_equal(config->path, config_path);
    pm_config_close(config);
    pm_config_close(NULL);
}

static void test_config_lookup(void **state)
{
    (void)state;
    pm_config *config = open_text("{\"a\":1,\"b\":2,\"c\":3,\"n\":null,\"rope_parameters\":{\"rope_theta\":7,\"x\":8},"
                                  "\"text_config\":{\"a\":10,\"b\":null,\"rope_parameters\":{\"rope_theta\":70}}}");
    static const struct {
        const char *field;
        int value; /* 0: absent */
    } cases[] = {
        {"a", 10},
        {"b", 2},
        {"c", 3},
        {"n", 0},
        {"d", 0},
        {"rope_parameters.rope_theta", 70},
        {"rope_parameters.x", 8},
        {"rope_parameters.y", 0},
        {"a.b", 0},
        {"n.b", 0},
        {"", 0},
        {".", 0},
        {"a.", 0},
        {".a", 0},
        {"text_config.a", 10},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        const json_t *value = pm_config_get(config, cases[i].field);
        if (cases[i].value ? json_integer_value(value) != cases[i].value : value != NULL)
            fail_msg("'%s' is %lld instead of %d", cases[i].field, (long long)json_integer_value(value),
                     cases[i].value);
    }
    pm_config_close(config);
}

static void test_config_int(void **state)
{
    (void)state;
    pm_config *config =
        open_text("{\"i\":5,\"w\":4.0,\"f\":4.5,\"s\":\"4\",\"t\":true,\"big\":3000000000,\"huge\":1e300,"
                  "\"inf\":Infinity,\"null\":null,\"neg\":-1,\"edge\":9223372036854775807}");
    static const struct {
        const char *field;
        int64_t min, max;
        int status, value;
        const char *part;
    } cases[] = {
        {"i", 1, 10, PM_OK, 5, NULL},
        {"i", 5, 5, PM_OK, 5, NULL},
        {"w", 0, 10, PM_OK, 4, NULL},
        {"i", 6, 10, PM_ERR_UNSUPPORTED, 0, "6 to 10"},
        {"i", 0, 4, PM_ERR_UNSUPPORTED, 0, "0 to 4"},
        {"neg", 0, 4, PM_ERR_UNSUPPORTED, 0, "-1"},
        {"neg", INT64_MIN, INT64_MAX, PM_OK, -1, NULL},
        {"big", 0, INT64_MAX, PM_ERR_UNSUPPORTED, 0, "3000000000"},
        {"edge", 0, INT64_MAX, PM_ERR_UNSUPPORTED, 0, "2147483647"},
        {"huge", 0, INT64_MAX, PM_ERR_UNSUPPORTED, 0, "1e+300"},
        {"f", 0, 10, PM_ERR_FORMAT, 0, "whole number"},
        {"s", 0, 10, PM_ERR_FORMAT, 0, "whole number"},
        {"t", 0, 10, PM_ERR_FORMAT, 0, "whole number"},
        {"inf", 0, 10, PM_ERR_FORMAT, 0, "whole number"},
        {"null", 0, 10, PM_ERR_FORMAT, 0, "lacks"},
        {"none", 0, 10, PM_ERR_FORMAT, 0, "lacks"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        int value = 77, or_value = 77;
        pm_error err = {0};
        int status = pm_config_int(config, cases[i].field, cases[i].min, cases[i].max, &value, &err);
        if (status != cases[i].status || value != (status == PM_OK ? cases[i].value : 77))
            fail_msg("case %zu, %s: status %d, value %d", i, cases[i].field, status, value);
        if (cases[i].part)
            expect_parts(cases[i].field, &err, config_path, cases[i].field, cases[i].part, NULL);
        bool absent = cases[i].part && strcmp(cases[i].part, "lacks") == 0;
        status = pm_config_int_or(config, cases[i].field, cases[i].min, cases[i].max, -9, &or_value, &err);
        assert_int_equal(status, absent ? PM_OK : cases[i].status);
        assert_int_equal(or_value, absent ? -9 : value);
    }
    pm_config_close(config);
}

static void test_config_float(void **state)
{
    (void)state;
    pm_config *config = open_text("{\"i\":5,\"f\":1e-6,\"inf\":Infinity,\"text\":\"Infinity\",\"nan\":NaN,\"s\":\"1\","
                                  "\"b\":true,\"null\":null,\"huge\":1e300}");
    static const struct {
        const char *field;
        double min, max;
        int status;
        float value;
    } cases[] = {
        {"i", 0, 10, PM_OK, 5},
        {"f", 0, 1, PM_OK, 1e-6f},
        {"inf", 0, INFINITY, PM_OK, INFINITY},
        {"text", 0, INFINITY, PM_OK, INFINITY},
        {"inf", 0, 1e30, PM_ERR_UNSUPPORTED, 0},
        {"nan", -INFINITY, INFINITY, PM_ERR_UNSUPPORTED, 0},
        {"huge", 0, INFINITY, PM_ERR_UNSUPPORTED, 0},
        {"i", 5.5, 10, PM_ERR_UNSUPPORTED, 0},
        {"s", 0, 10, PM_ERR_FORMAT, 0},
        {"b", 0, 10, PM_ERR_FORMAT, 0},
        {"null", 0, 10, PM_ERR_FORMAT, 0},
        {"none", 0, 10, PM_ERR_FORMAT, 0},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        float value = 77;
        pm_error err = {0};
        int status = pm_config_float(config, cases[i].field, cases[i].min, cases[i].max, &value, &err);
        if (status != cases[i].status || value != (status == PM_OK ? cases[i].value : 77))
            fail_msg("case %zu, %s: status %d, value %g", i, cases[i].field, status, (double)value);
        if (status != PM_OK)
            expect_parts(cases[i].field, &err, config_path, cases[i].field, NULL);
    }
    float value = 0;
    assert_int_equal(pm_config_float_or(config, "null", 0, 1, 0.25f, &value, NULL), PM_OK);
    assert_true(value == 0.25f);
    assert_int_equal(pm_config_float_or(config, "f", 0, 1, 0.25f, &value, NULL), PM_OK);
    assert_true(value == 1e-6f);
    assert_int_equal(pm_config_float_or(config, "s", 0, 1, 0.25f, &value, NULL), PM_ERR_FORMAT);
    pm_config_close(config);
}

static void test_config_bool_and_string(void **state)
{
    (void)state;
    pm_config *config =
        open_text("{\"t\":true,\"f\":false,\"null\":null,\"n\":1,\"s\":\"silu\",\"text_config\":{\"s\":\"gelu\"}}");
    pm_error err = {0};
    bool b = false;
    assert_int_equal(pm_config_bool_or(config, "t", false, &b, &err), PM_OK);
    assert_true(b);
    assert_int_equal(pm_config_bool_or(config, "f", true, &b, &err), PM_OK);
    assert_false(b);
    assert_int_equal(pm_config_bool_or(config, "null", true, &b, &err), PM_OK);
    assert_true(b);
    assert_int_equal(pm_config_bool_or(config, "none", false, &b, &err), PM_OK);
    assert_false(b);
    assert_int_equal(pm_config_bool_or(config, "n", true, &b, &err), PM_ERR_FORMAT);
    expect_parts("bool", &err, config_path, "n is not true or false", NULL);
    assert_false(b);

    const char *s = NULL;
    assert_int_equal(pm_config_string(config, "s", &s, &err), PM_OK);
    assert_string_equal(s, "gelu");
    assert_int_equal(pm_config_string(config, "n", &s, &err), PM_ERR_FORMAT);
    expect_parts("string", &err, config_path, "n is not a string", NULL);
    assert_int_equal(pm_config_string(config, "none", &s, &err), PM_ERR_FORMAT);
    expect_parts("string", &err, config_path, "none", NULL);
    assert_string_equal(s, "gelu");
    pm_config_close(config);
}

/* ---- quantisation ---- */

static void test_quant(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stored, *name;
        pm_quant expected;
    } cases[] = {
        {"{}", "a", "b", {PM_MODE_NONE, 0, 0, {0}}},
        {"{\"quantization\":null,\"quantization_config\":null}", "a", "b", {PM_MODE_NONE, 0, 0, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64}}", "a", "b", {PM_MODE_AFFINE, 4, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":null}}", "a", "b", {PM_MODE_AFFINE, 4, 64, {0}}},
        {"{\"quantization\":{\"bits\":3,\"group_size\":128,\"mode\":\"affine\"}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 3, 128, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}}", "a", "b", {PM_MODE_MXFP4, 4, 32, {0}}},
        {"{\"quantization\":{\"bits\":8,\"group_size\":32,\"mode\":\"mxfp8\"}}", "a", "b", {PM_MODE_MXFP8, 8, 32, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"}}", "a", "b", {PM_MODE_NVFP4, 4, 16, {0}}},
        {"{\"quantization_config\":{\"bits\":6,\"group_size\":64}}", "a", "b", {PM_MODE_AFFINE, 6, 64, {0}}},
        {"{\"text_config\":{\"quantization\":{\"bits\":6,\"group_size\":64}}}", "a", "b", {PM_MODE_AFFINE, 6, 64, {0}}},
        /* quantization wins, whatever the other one says */
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"},\"quantization\":{\"bits\":2,\"group_size\":32}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 2, 32, {0}}},
        /* overrides by the name before renaming, after it, and both */
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":{\"bits\":6,\"group_size\":64}}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 6, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"b\":{\"bits\":6,\"group_size\":64}}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 6, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":{\"bits\":5},\"b\":{\"bits\":6}}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 5, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":{\"bits\":6}}}",
         "c",
         "d",
         {PM_MODE_AFFINE, 4, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"model.language_model.layers.0.x\":{\"bits\":6,\"group_"
         "size\":"
         "64}}}",
         "model.language_model.layers.0.x",
         "layers.0.x",
         {PM_MODE_AFFINE, 6, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":false}}", "a", "b", {PM_MODE_NONE, 0, 0, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"b\":false}}", "a", "b", {PM_MODE_NONE, 0, 0, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":true}}", "a", "b", {PM_MODE_AFFINE, 4, 64, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":null,\"b\":false}}",
         "a",
         "b",
         {PM_MODE_NONE, 0, 0, {0}}},
        /* an override stands alone: without a mode it is affine even where the rest is not, and other settings that are
         * absent have their mode's default */
        {"{\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\",\"a\":{\"bits\":8,\"group_size\":64}}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 8, 64, {0}}},
        {"{\"quantization\":{\"bits\":3,\"group_size\":32,\"a\":{\"group_size\":128}}}",
         "a",
         "b",
         {PM_MODE_AFFINE, 4, 128, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":{\"mode\":\"mxfp8\"}}}",
         "a",
         "b",
         {PM_MODE_MXFP8, 8, 32, {0}}},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":{}}}", "a", "b", {PM_MODE_AFFINE, 4, 64, {0}}},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_config *config = open_text(cases[i].text);
        pm_quant got = {77, 77, 77, {0}};
        pm_error err = {0};
        int status = pm_config_quant(config, cases[i].stored, cases[i].name, &got, &err);
        const pm_quant *want = &cases[i].expected;
        if (status != PM_OK || got.mode != want->mode || got.bits != want->bits || got.group_size != want->group_size)
            fail_msg("%s: status %d (%s), mode %d, %d bits, group %d", cases[i].text, status, err.message, got.mode,
                     got.bits, got.group_size);
        pm_config_close(config);
    }
}

static void test_quant_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
        const char *field, *part;
    } cases[] = {
        {"{\"quantization\":5}", PM_ERR_FORMAT, "quantization", "object"},
        {"{\"quantization\":{}}", PM_ERR_FORMAT, "quantization", "bits"},
        {"{\"quantization\":{\"bits\":4}}", PM_ERR_FORMAT, "quantization", "group_size"},
        {"{\"quantization\":{\"bits\":\"4\",\"group_size\":64}}", PM_ERR_FORMAT, "quantization", "bits"},
        {"{\"quantization\":{\"bits\":4.5,\"group_size\":64}}", PM_ERR_FORMAT, "quantization", "bits"},
        {"{\"quantization\":{\"bits\":-4,\"group_size\":64}}", PM_ERR_FORMAT, "quantization", "bits"},
        {"{\"quantization\":{\"bits\":0,\"group_size\":64}}", PM_ERR_UNSUPPORTED, "quantization", "bits"},
        {"{\"quantization\":{\"bits\":7,\"group_size\":64}}", PM_ERR_UNSUPPORTED, "quantization", "bits"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":48}}", PM_ERR_UNSUPPORTED, "quantization", "group_size"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":0}}", PM_ERR_UNSUPPORTED, "quantization", "group_size"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":\"mxfp4\"}}", PM_ERR_UNSUPPORTED, "quantization",
         "group_size"},
        {"{\"quantization\":{\"bits\":8,\"group_size\":16,\"mode\":\"nvfp4\"}}", PM_ERR_UNSUPPORTED, "quantization",
         "bits"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":\"turbo\"}}", PM_ERR_UNSUPPORTED, "quantization",
         "turbo"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":4}}", PM_ERR_FORMAT, "quantization", "mode"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"a\":{\"bits\":7}}}", PM_ERR_UNSUPPORTED, "module a",
         "bits"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"b\":{\"mode\":\"x\"}}}", PM_ERR_UNSUPPORTED, "module b",
         "'x'"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"b\":6}}", PM_ERR_FORMAT, "quantization", "entry of b"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\",\"quantize_input\":true}}",
         PM_ERR_UNSUPPORTED, "quantization", "quantize_input"},
        {"{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}", PM_ERR_UNSUPPORTED, "quantization_config",
         "'awq'"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,0]}}", PM_ERR_FORMAT,
         "quantization_config", "weight_block_size"},
        {"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"fmt\":\"e5m2\"}}",
         PM_ERR_UNSUPPORTED, "quantization_config", "fmt"},
        {"{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":128}}", PM_ERR_UNSUPPORTED,
         "quantization_config", "'awq'"},
        {"{\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}}", PM_ERR_UNSUPPORTED,
         "quantization_config", "'modelopt' with quant_algo NVFP4"},
        {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}}", PM_ERR_UNSUPPORTED,
         "quantization_config", "format"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_config *config = open_text(cases[i].text);
        pm_quant got = {77, 77, 77, {0}};
        pm_error err = {0};
        int status = pm_config_quant(config, "a", "b", &got, &err);
        if (status != cases[i].status || got.bits != 77)
            fail_msg("%s: status %d (%s)", cases[i].text, status, err.message);
        expect_parts(cases[i].text, &err, config_path, cases[i].field, cases[i].part, NULL);
        pm_config_close(config);
    }
}

/* compressed-tensors: what Kimi K2 Thinking says is read, and every setting that asks for something else is named. */
static void test_packed(void **state)
{
    (void)state;
    static const struct {
        const char *group, *weights, *more; /* further settings of the group, of its weights and beside the groups */
        const char *part;                   /* of the refusal; NULL: read */
    } cases[] = {
        {"", "", "", NULL},
        {"'input_activations':null,", "'actorder':null,'dynamic':false,'type':'int',",
         "'kv_cache_scheme':null,'sparsity_config':{},'transform_config':{},'ignore':['lm_head','re:.*attn.*'],", NULL},
        {"'format':'pack-quantized',", "'actorder':false,", "'sparsity_config':{'format':'dense'},", NULL},
        {"", "'actorder':'group',", "", "config_groups.g.weights.actorder"},
        {"", "'actorder':'weight',", "", "config_groups.g.weights.actorder"},
        {"", "'symmetric':false,", "", "config_groups.g.weights.symmetric"},
        {"", "'strategy':'channel',", "", "config_groups.g.weights.strategy"},
        {"", "'strategy':'tensor_group',", "", "config_groups.g.weights.strategy"},
        {"", "'type':'float',", "", "config_groups.g.weights.type"},
        {"", "'dynamic':true,", "", "config_groups.g.weights.dynamic"},
        {"", "'dynamic':'local',", "", "config_groups.g.weights.dynamic"},
        {"", "'block_structure':'2x4',", "", "config_groups.g.weights.block_structure"},
        {"", "'num_bits':3,", "", "num_bits of quantization_config.config_groups.g.weights"},
        {"", "'num_bits':'4',", "", "num_bits of quantization_config.config_groups.g.weights"},
        {"", "'num_bits':null,", "", "num_bits of quantization_config.config_groups.g.weights"},
        {"", "'group_size':48,", "", "group_size of quantization_config.config_groups.g.weights"},
        {"", "'group_size':-1,", "", "group_size of quantization_config.config_groups.g.weights"},
        {"'format':'float-quantized',", "", "", "config_groups.g.format"},
        {"'input_activations':{'num_bits':8},", "", "", "config_groups.g.input_activations"},
        {"'output_activations':{'num_bits':8},", "", "", "config_groups.g.output_activations"},
        {"", "", "'format':'nvfp4-pack-quantized',", "format 'nvfp4-pack-quantized' of quantization_config is not"},
        {"", "", "'format':null,", "format '?' of quantization_config is not supported"},
        {"", "", "'kv_cache_scheme':{'num_bits':8},", "kv_cache_scheme of quantization_config"},
        {"", "", "'transform_config':{'a':1},", "transform_config of quantization_config"},
        {"", "", "'sparsity_config':{'format':'sparse-24-bitmask'},", "sparsity_config.format"},
        {"", "", "'config_groups':{},", "config_groups of quantization_config is not one group"},
        {"", "", "'config_groups':{'a':{},'b':{}},", "config_groups of quantization_config is not one group"},
        {"", "", "'config_groups':{'a':{}},", "num_bits of quantization_config.config_groups.a.weights"},
        {"", "", "'config_groups':[],", "config_groups of quantization_config is not one group"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        char text[1024];
        /* Settings that come again replace the usual ones, so they are left out where a case has them. */
        bool bits = strstr(cases[i].weights, "num_bits"), size = strstr(cases[i].weights, "group_size");
        bool groups = strstr(cases[i].more, "config_groups"), format = strstr(cases[i].more, "'format':'n");
        int n = snprintf(text, sizeof(text), "{'quantization_config':{%s%s", cases[i].more,
                         format || strstr(cases[i].more, "'format':null") ? "" : "'format':'pack-quantized',");
        if (!groups)
            n +=
                snprintf(text + n, sizeof(text) - (size_t)n,
                         "'config_groups':{'g':{%s'weights':{%s%s%s'observer':'minmax'},'targets':['Linear']}},",
                         cases[i].group, cases[i].weights, bits ? "" : "'num_bits':4,", size ? "" : "'group_size':32,");
        snprintf(text + n, sizeof(text) - (size_t)n, "'quant_method':'compressed-tensors'}}");
        for (char *c = text; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        pm_config *config = open_text(text);
        pm_quant got = {77, 77, 77, {0}};
        pm_error err = {0};
        int status = pm_config_quant(config, "a", "b", &got, &err);
        if (!cases[i].part && (status != PM_OK || got.mode != PM_MODE_PACKED || got.bits != 4 || got.group_size != 32))
            fail_msg("%s: status %d (%s), %d bits in groups of %d", text, status, err.message, got.bits,
                     got.group_size);
        if (cases[i].part && (status == PM_OK || got.bits != 77))
            fail_msg("%s: status %d, %d bits", text, status, got.bits);
        if (cases[i].part)
            expect_parts(text, &err, config_path, cases[i].part, NULL);
        pm_config_close(config);
    }
}

/* ---- stop tokens ---- */

static void test_stops(void **state)
{
    (void)state;
    static const struct {
        const char *config, *generation; /* generation: NULL when there is no such file */
        size_t n;
        pm_token ids[4];
    } cases[] = {
        {"{}", NULL, 0, {0}},
        {"{}", "{}", 0, {0}},
        {"{\"eos_token_id\":2}", NULL, 1, {2}},
        {"{\"eos_token_id\":2}", "{\"eos_token_id\":[2,7]}", 2, {2, 7}},
        {"{\"eos_token_id\":[7,2,7]}", "{\"eos_token_id\":2}", 2, {2, 7}},
        {"{\"eos_token_id\":null}", "{\"eos_token_id\":5}", 1, {5}},
        {"{\"eos_token_id\":9}", "{\"eos_token_id\":null}", 1, {9}},
        {"{\"eos_token_id\":[]}", "{\"eos_token_id\":[]}", 0, {0}},
        {"{\"eos_token_id\":9,\"text_config\":{\"eos_token_id\":[3]}}", "{\"eos_token_id\":4}", 3, {3, 4, 9}},
        {"{\"text_config\":{\"eos_token_id\":0}}", NULL, 1, {0}},
        {"{\"text_config\":{\"eos_token_id\":null},\"eos_token_id\":2147483647}", NULL, 1, {2147483647}},
        {"{\"eos_token_id\":2.0}", NULL, 1, {2}},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_config *config = open_text(cases[i].config);
        json_t *generation = NULL;
        pm_token *ids = NULL;
        size_t n = 99;
        pm_error err = {0};
        if (cases[i].generation)
            assert_int_equal(pm_json_text("g", cases[i].generation, strlen(cases[i].generation), &generation, &err),
                             PM_OK);
        if (pm_config_stops(config, generation, &ids, &n, &err) != PM_OK)
            fail_msg("case %zu: %s", i, err.message);
        if (n != cases[i].n || (n && memcmp(ids, cases[i].ids, n * sizeof(*ids)) != 0))
            fail_msg("case %zu: %zu ids, the first %d", i, n, n ? ids[0] : -1);
        free(ids);
        json_decref(generation);
        pm_config_close(config);
    }
}

static void test_stops_bad(void **state)
{
    (void)state;
    static const struct {
        const char *config, *generation, *file, *field;
    } cases[] = {
        {"{\"eos_token_id\":\"2\"}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":true}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":-1}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":2147483648}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":1.5}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":[1,[2]]}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":[1,null]}", "{}", "/config.json", "eos_token_id"},
        {"{\"eos_token_id\":1,\"text_config\":{\"eos_token_id\":{}}}", "{}", "/config.json",
         "text_config.eos_token_id"},
        {"{\"eos_token_id\":1}", "{\"eos_token_id\":[1,\"</s>\"]}", "generation_config.json", "eos_token_id"},
        {"{\"eos_token_id\":1}", "{\"eos_token_id\":-3}", "generation_config.json", "-3"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_config *config = open_text(cases[i].config);
        json_t *generation = NULL;
        pm_token *ids = NULL;
        size_t n = 99;
        pm_error err = {0};
        assert_int_equal(pm_json_text("g", cases[i].generation, strlen(cases[i].generation), &generation, &err), PM_OK);
        int status = pm_config_stops(config, generation, &ids, &n, &err);
        if (status != PM_ERR_FORMAT || ids || n != 99)
            fail_msg("case %zu: status %d", i, status);
        expect_parts(cases[i].config, &err, cases[i].file, cases[i].field, NULL);
        json_decref(generation);
        pm_config_close(config);
    }
}

/* ---- damage ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Whatever happens to the bytes, there is an answer or a message that names the file. */
static void test_mutations(void **state)
{
    (void)state;
    static const char valid[] =
        "{\"a\":[0.0,Infinity],\"eos_token_id\":[2,0],\"e\":\"\\u00e9\\n\",\n\"text_config\":{\"n\":12,\"f\":1e-06,"
        "\"rope_parameters\":{\"rope_theta\":NaN}},\"quantization\":{\"bits\":4,\"group_size\":64,\"x\":{\"bits\":8}}}";
    static const char spice[] = "{}[]\":,\\-+.eE0129NIatun \n\0\xff\xc3";
    for (uint64_t seed = 0; seed < 3000; seed++) {
        char text[sizeof(valid)];
        uint64_t random = seed;
        size_t len = sizeof(valid) - 1;
        memcpy(text, valid, sizeof(valid));
        for (uint64_t k = next_random(&random) % 3 + 1; k > 0; k--)
            text[next_random(&random) % len] = next_random(&random) % 2
                                                   ? spice[next_random(&random) % (sizeof(spice) - 1)]
                                                   : (char)next_random(&random);
        if (next_random(&random) % 8 == 0)
            len = next_random(&random) % len;
        write_config(text, len);
        pm_config *config = NULL;
        pm_error err = {0};
        if (pm_config_open(&config, directory, &err) != PM_OK) {
            expect_parts("mutation", &err, config_path, NULL);
            continue;
        }
        pm_token *ids = NULL;
        size_t n;
        pm_quant quant;
        int i;
        float f;
        if (pm_config_stops(config, NULL, &ids, &n, &err) != PM_OK)
            expect_parts("stops", &err, config_path, NULL);
        free(ids);
        if (pm_config_quant(config, "x", "y", &quant, &err) != PM_OK)
            expect_parts("quant", &err, config_path, NULL);
        if (pm_config_int(config, "n", 0, 100, &i, &err) != PM_OK)
            expect_parts("n", &err, config_path, "n", NULL);
        if (pm_config_float(config, "rope_parameters.rope_theta", 0, 1e9, &f, &err) != PM_OK)
            expect_parts("theta", &err, config_path, "rope_parameters.rope_theta", NULL);
        pm_config_close(config);
    }
}

/* ---- real checkpoints ---- */

/* The settings must agree with the shapes: a row of scales has one entry per group, a row of weights has `bits` bits
 * per input. */
static void check_model(const char *dir)
{
    pm_config *config = NULL;
    pm_checkpoint *checkpoint = NULL;
    pm_error err = {0};
    const char *type = NULL;
    pm_token *ids = NULL;
    size_t n = 0, checked = 0;
    bool found = false;
    if (pm_config_open(&config, dir, &err) != PM_OK || pm_checkpoint_open(&checkpoint, dir, &err) != PM_OK ||
        pm_config_string(config, "model_type", &type, &err) != PM_OK ||
        pm_config_stops(config, NULL, &ids, &n, &err) != PM_OK)
        fail_msg("%s: %s", dir, err.message);
    for (size_t i = 0; i < n; i++)
        found |= ids[i] == 2;
    if (!found)
        fail_msg("%s: <|im_end|> is not among the stop tokens", dir);
    for (size_t i = 0; i < pm_checkpoint_count(checkpoint); i++) {
        const pm_stored *scales = pm_checkpoint_at(checkpoint, i);
        size_t stem = strlen(scales->name) - strlen(".scales");
        char module[256], weight_name[256];
        if (strlen(scales->name) < 8 || strcmp(scales->name + stem, ".scales") != 0)
            continue;
        snprintf(module, sizeof(module), "%.*s", (int)stem, scales->name);
        snprintf(weight_name, sizeof(weight_name), "%.*s.weight", (int)stem, scales->name);
        const pm_stored *weight = pm_checkpoint_find(checkpoint, weight_name);
        pm_quant quant;
        if (!weight) {
            fail_msg("%s: no %s", dir, weight_name);
            break;
        }
        if (pm_config_quant(config, module, module, &quant, &err) != PM_OK)
            fail_msg("%s", err.message);
        int64_t in = scales->shape[scales->rank - 1] * quant.group_size;
        if (quant.mode == PM_MODE_NONE || weight->shape[weight->rank - 1] * 32 != in * quant.bits)
            fail_msg("%s: %s: mode %d with %d bits and groups of %d contradicts the shapes", dir, module, quant.mode,
                     quant.bits, quant.group_size);
        checked++;
    }
    print_message("%s: %s, %zu quantised modules\n", dir, type, checked);
    free(ids);
    pm_checkpoint_close(checkpoint);
    pm_config_close(config);
}

static void test_models(void **state)
{
    (void)state;
    check_model(SOURCE_DIR "/models/default");
    if (!*MODELS_DIR)
        return;
    DIR *dir = opendir(MODELS_DIR);
    if (!dir) {
        fail_msg("cannot open %s", MODELS_DIR);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4096], config[4200];
        snprintf(path, sizeof(path), "%s/%s", MODELS_DIR, entry->d_name);
        snprintf(config, sizeof(config), "%s/config.json", path);
        if (pm_is_file(config))
            check_model(path);
    }
    closedir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_bad_files), cmocka_unit_test(test_json_limits),
        cmocka_unit_test(test_json_text),      cmocka_unit_test(test_json_bare_numbers),
        cmocka_unit_test(test_json_no_memory), cmocka_unit_test(test_config_open),
        cmocka_unit_test(test_config_lookup),  cmocka_unit_test(test_config_int),
        cmocka_unit_test(test_config_float),   cmocka_unit_test(test_config_bool_and_string),
        cmocka_unit_test(test_quant),          cmocka_unit_test(test_quant_bad),
        cmocka_unit_test(test_packed),         cmocka_unit_test(test_stops),
        cmocka_unit_test(test_stops_bad),      cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_models),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
