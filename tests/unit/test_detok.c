/* The streaming detokeniser: whole characters only, nothing lost, U+FFFD as the Unicode Standard recommends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/tokenizer.h"

static pm_tokenizer *tokenizer;

static int open_bundled(void **state)
{
    (void)state;
    return pm_tokenizer_open(&tokenizer, SOURCE_DIR "/models/default", NULL);
}

static int close_bundled(void **state)
{
    (void)state;
    pm_tokenizer_close(tokenizer);
    return 0;
}

/* The token that stands for one byte. */
static pm_token byte_token(unsigned byte)
{
    /* Printable ASCII is spelt as itself; the high bytes used here as Latin-1 or as U+0100 and up. */
    char spelling[3] = {0};
    unsigned c = byte;
    if (byte <= 0x20)
        c = 0x100 + byte;
    else if (byte >= 0x7F && byte <= 0xA0)
        c = 0x121 + byte - 0x7F;
    else if (byte == 0xAD)
        c = 0x143;
    if (c < 0x80) {
        spelling[0] = (char)c;
    } else {
        spelling[0] = (char)(0xC0 | c >> 6);
        spelling[1] = (char)(0x80 | (c & 0x3F));
    }
    pm_token id = pm_tokenizer_id(tokenizer, spelling);
    assert_true(id >= 0);
    return id;
}

static void test_no_half_characters(void **state)
{
    (void)state;
    static const char text[] = "\xc4\x8d"
                               "aj \xf0\x9f\x98\x80 \xe6\xbc\xa2\xe5\xad\x97\n";
    pm_detok detok;
    pm_buf out = {0};
    assert_int_equal(pm_detok_init(&detok, tokenizer, false, NULL), PM_OK);
    for (size_t i = 0; text[i]; i++) {
        assert_int_equal(pm_detok_push(&detok, byte_token((uint8_t)text[i]), &out, NULL), PM_OK);
        assert_true(pm_utf8_valid(out.data ? out.data : "", out.len, NULL));
        assert_true(out.len <= i + 1);
        assert_memory_equal(out.data ? out.data : "", text, out.len);
        if (((unsigned char)text[i + 1] & 0xC0) != 0x80) /* the next byte starts a character: this one is out */
            assert_int_equal(out.len, i + 1);
    }
    assert_int_equal(pm_detok_finish(&detok, &out, NULL), PM_OK);
    assert_string_equal(out.data, text);
    pm_buf_free(&out);
    pm_detok_free(&detok);
}

#define R "\xEF\xBF\xBD"

/* The examples of chapter 3 of the Unicode Standard (U+FFFD substitution of maximal subparts), and cuts at the end. */
static void test_replacement(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"\xff", R},
        {"a\x80z", "a" R "z"},
        {"\x80\x80", R R},
        {"a\xc3", "a" R},
        {"\xc3(", R "("},
        {"\xf0\x9f\x98", R},
        {"\xf0\x9f\x98z", R "z"},
        {"\xe6\xbc\xe6\xbc\xa2", R "\xe6\xbc\xa2"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"},
        {"\xf4\x8f\xbf\xbf\xf5\x80", "\xf4\x8f\xbf\xbf" R R},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_detok detok;
        pm_buf out = {0};
        assert_int_equal(pm_detok_init(&detok, tokenizer, false, NULL), PM_OK);
        for (const char *p = cases[i][0]; *p; p++)
            assert_int_equal(pm_detok_push(&detok, byte_token((uint8_t)*p), &out, NULL), PM_OK);
        assert_int_equal(pm_detok_finish(&detok, &out, NULL), PM_OK);
        assert_string_equal(out.data, cases[i][1]);
        assert_int_equal(pm_detok_finish(&detok, &out, NULL), PM_OK); /* nothing is left */
        assert_string_equal(out.data, cases[i][1]);
        pm_buf_free(&out);
        pm_detok_free(&detok);
    }
}

/* With byte fallback, a run of byte tokens is one text or it is none, as in the `tokenizers` library: well-formed, it
 * comes out as it is when another token ends it; ill-formed, be it by one byte or by a cut at the end, each of its
 * bytes is one U+FFFD. What stands before and behind the run is never lost. */
static void test_byte_fallback(void **state)
{
    (void)state;
    static const struct {
        const char *tokens;        /* letters, and bytes from 0x80 on as byte tokens */
        const char *shown, *whole; /* after the last token, and at the end */
    } cases[] = {
        {"\xc4\x8d"
         "aj",
         "\xc4\x8d"
         "aj",
         "\xc4\x8d"
         "aj"},
        {"a\xf0\x9f\x98\x80", "a", "a\xf0\x9f\x98\x80"},
        {"a\xf0\x9f\x98\x80"
         "b\xe6\xbc\xa2\xe5\xad\x97z",
         "a\xf0\x9f\x98\x80"
         "b\xe6\xbc\xa2\xe5\xad\x97z",
         "a\xf0\x9f\x98\x80"
         "b\xe6\xbc\xa2\xe5\xad\x97z"},
        {"a\xf0\x9f\x98", "a", "a" R R R},
        {"a\xffz", "a" R "z", "a" R "z"},
        {"a\xe6\xbc\xa2\xf0\x9f", "a", "a" R R R R R},
        {"\xe6\xbc\xa2"
         "a\xe6\xbc",
         "\xe6\xbc\xa2"
         "a",
         "\xe6\xbc\xa2"
         "a" R R},
    };
    pm_buf json = {0};
    pm_tokenizer *bytes;
    pm_buf_printf(&json,
                  "{\"decoder\": {\"type\": \"ByteFallback\"}, \"model\": {\"byte_fallback\": true, \"merges\": [], "
                  "\"vocab\": {\"a\": 97, \"b\": 98, \"j\": 106, \"z\": 122");
    for (int byte = 0x80; byte < 256; byte++)
        pm_buf_printf(&json, ", \"<0x%02X>\": %d", (unsigned)byte, byte);
    assert_int_equal(pm_buf_printf(&json, "}}}"), PM_OK);
    assert_int_equal(pm_tokenizer_read(&bytes, "test", json.data, json.len, NULL), PM_OK);
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_detok detok;
        pm_buf out = {0};
        assert_int_equal(pm_detok_init(&detok, bytes, false, NULL), PM_OK);
        for (const char *p = cases[i].tokens; *p; p++) {
            assert_int_equal(pm_detok_push(&detok, (uint8_t)*p, &out, NULL), PM_OK);
            assert_true(pm_utf8_valid(out.data ? out.data : "", out.len, NULL));
            assert_memory_equal(out.data ? out.data : "", cases[i].whole, out.len);
        }
        assert_string_equal(out.data ? out.data : "", cases[i].shown);
        assert_int_equal(pm_detok_finish(&detok, &out, NULL), PM_OK);
        assert_string_equal(out.data, cases[i].whole);
        pm_buf_free(&out);
        pm_detok_free(&detok);
    }
    pm_tokenizer_close(bytes);
    pm_buf_free(&json);
}

static void test_special_tokens(void **state)
{
    (void)state;
    pm_token start = pm_tokenizer_id(tokenizer, "<|im_start|>"), a = byte_token('a');
    for (int special = 0; special < 2; special++) {
        pm_detok detok;
        pm_buf out = {0};
        assert_int_equal(pm_detok_init(&detok, tokenizer, special, NULL), PM_OK);
        assert_int_equal(pm_detok_push(&detok, start, &out, NULL), PM_OK);
        assert_int_equal(pm_detok_push(&detok, a, &out, NULL), PM_OK);
        assert_string_equal(out.data, special ? "<|im_start|>a" : "a");
        pm_buf_free(&out);
        pm_detok_free(&detok);
    }
}

/* An id that is not there fails without touching what was held or written. */
static void test_unknown_ids(void **state)
{
    (void)state;
    pm_token bad[] = {-1, pm_tokenizer_vocab(tokenizer), INT32_MAX, INT32_MIN};
    pm_detok detok;
    pm_buf out = {0};
    assert_int_equal(pm_detok_init(&detok, tokenizer, false, NULL), PM_OK);
    assert_int_equal(pm_detok_push(&detok, byte_token(0xC3), &out, NULL), PM_OK);
    for (size_t i = 0; i < PM_COUNT(bad); i++) {
        pm_error err = {0};
        char number[16];
        snprintf(number, sizeof(number), "%d", (int)bad[i]);
        assert_int_equal(pm_detok_push(&detok, bad[i], &out, &err), PM_ERR_INVALID);
        assert_non_null(strstr(err.message, number));
        assert_int_equal(out.len, 0);
    }
    assert_int_equal(pm_detok_push(&detok, byte_token(0xA9), &out, NULL), PM_OK);
    assert_string_equal(out.data, "\xc3\xa9");
    pm_buf_free(&out);
    pm_detok_free(&detok);
}

static void expect_bytes(const pm_tokenizer *from, const char *token, const char *bytes)
{
    pm_buf out = {0};
    pm_token id = pm_tokenizer_id(from, token);
    assert_true(id >= 0);
    assert_int_equal(pm_buf_reserve(&out, 0), PM_OK);
    assert_int_equal(pm_tokenizer_bytes(from, id, &out, NULL), PM_OK);
    assert_int_equal(out.len, strlen(bytes));
    assert_memory_equal(out.data, bytes, out.len);
    pm_buf_free(&out);
}

/* The bytes that a token adds to a text that has begun. */
static void test_bytes(void **state)
{
    (void)state;
    static const char json[] =
        "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": "
        "\"\xe2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": "
        "\"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}, \"model\": {\"byte_fallback\": true, "
        "\"merges\": [], \"vocab\": {\"a\": 0, \"\xe2\x96\x81Hi\": 1, \"<0xF0>\": 2, \"\xe2\x96\x81\": 3, \"z\": 9}}}";
    pm_tokenizer *fallback;
    pm_buf out = {0};
    pm_error err;
    expect_bytes(tokenizer,
                 "\xc4\xa0"
                 "dog",
                 " dog");
    expect_bytes(tokenizer, "\xc3\xb0", "\xf0");
    expect_bytes(tokenizer, "<|im_end|>", "");
    assert_int_equal(pm_tokenizer_read(&fallback, "test", json, sizeof(json) - 1, NULL), PM_OK);
    expect_bytes(fallback, "a", "a");
    expect_bytes(fallback, "\xe2\x96\x81Hi", " Hi");
    expect_bytes(fallback, "\xe2\x96\x81", " ");
    expect_bytes(fallback, "<0xF0>", "\xf0");
    assert_int_equal(pm_tokenizer_bytes(fallback, 5, &out, NULL), PM_OK); /* a hole in the vocabulary */
    assert_int_equal(out.len, 0);
    assert_int_equal(pm_tokenizer_bytes(fallback, 10, &out, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "10"));
    pm_tokenizer_close(fallback);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_half_characters), cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_byte_fallback),      cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_unknown_ids),        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests_name("detok", tests, open_bundled, close_bundled);
}
