/* src/base: errors, sizes, buffers, arenas, maps, UTF-8, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static void test_fail(void **state)
{
    (void)state;
    pm_error err;
    assert_int_equal(pm_fail(&err, PM_ERR_IO, "cannot open %s: %d", "a\nb\x1b[31m\x7f", 7), PM_ERR_IO);
    assert_int_equal(err.code, PM_ERR_IO);
    assert_string_equal(err.message, "cannot open a?b?[31m?: 7");

    assert_int_equal(pm_fail(NULL, PM_ERR_LIMIT, "%d", 1), PM_ERR_LIMIT);
    assert_int_equal(pm_fail_memory(NULL), PM_ERR_MEMORY);
    assert_int_equal(pm_fail_memory(&err), PM_ERR_MEMORY);
    assert_string_equal(err.message, "out of memory");

    char word[3000];
    memset(word, 'x', sizeof(word) - 1);
    word[sizeof(word) - 1] = 0;
    pm_fail(&err, PM_ERR_FORMAT, "%s", word);
    assert_int_equal(strlen(err.message), sizeof(err.message) - 1);

    pm_fail(&err, PM_ERR_FORMAT, "%s", "\xe5\x90\x8d stays");
    assert_string_equal(err.message, "\xe5\x90\x8d stays");
}

static void test_sizes(void **state)
{
    (void)state;
    size_t out = 7;
    assert_true(pm_mul(6, 7, &out));
    assert_int_equal(out, 42);
    assert_true(pm_mul(SIZE_MAX, 0, &out));
    assert_int_equal(out, 0);
    assert_true(pm_mul(SIZE_MAX, 1, &out));
    assert_false(pm_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_true(pm_add(SIZE_MAX - 1, 1, &out));
    assert_int_equal(out, SIZE_MAX);
    assert_false(pm_add(SIZE_MAX, 1, &out));
}

static void test_buf(void **state)
{
    (void)state;
    pm_buf buf = {0};
    assert_int_equal(pm_buf_add(&buf, NULL, 0), PM_OK);
    assert_int_equal(buf.len, 0);
    assert_int_equal(buf.data[0], 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(pm_buf_printf(&buf, "%03d,", i), PM_OK);
        assert_int_equal(buf.len, 4 * (i + 1));
        assert_int_equal(buf.data[buf.len], 0);
        assert_true(buf.cap > buf.len);
    }
    assert_memory_equal(buf.data + 4 * 567, "567,568,", 8);
    assert_int_equal(pm_buf_add(&buf, "a\0b", 3), PM_OK);
    assert_int_equal(buf.len, 4003);
    assert_memory_equal(buf.data + 4000, "a\0b", 4);

    pm_buf before = buf;
    assert_int_equal(pm_buf_reserve(&buf, SIZE_MAX), PM_ERR_MEMORY);
    assert_int_equal(pm_buf_reserve(&buf, SIZE_MAX - buf.len), PM_ERR_MEMORY);
    assert_memory_equal(&before, &buf, sizeof(buf));
    pm_buf_free(&buf);
    assert_null(buf.data);
    assert_int_equal(buf.len + buf.cap, 0);
    pm_buf_free(&buf);
}

static void test_grow(void **state)
{
    (void)state;
    void *array = NULL;
    size_t cap = 0;
    for (size_t need = 1; need < 5000; need++) {
        assert_int_equal(pm_grow(&array, &cap, need, sizeof(int)), PM_OK);
        assert_true(cap >= need);
        ((int *)array)[need - 1] = (int)need;
    }
    for (int i = 0; i < 4999; i++)
        assert_int_equal(((int *)array)[i], i + 1);
    assert_true(cap < 20000);
    void *same = array;
    assert_int_equal(pm_grow(&array, &cap, 10, sizeof(int)), PM_OK);
    assert_ptr_equal(same, array);
    size_t old = cap;
    assert_int_equal(pm_grow(&array, &cap, SIZE_MAX / 2, sizeof(int)), PM_ERR_MEMORY);
    assert_ptr_equal(same, array);
    assert_int_equal(cap, old);
    free(array);
}

static void test_arena(void **state)
{
    (void)state;
    pm_arena arena = {0};
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000, 65535, 65536, 65537, 300000};
    char *all[20 * PM_COUNT(sizes)];
    size_t n = 0;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < PM_COUNT(sizes); i++, n++) {
            char *p = all[n] = pm_arena_alloc(&arena, sizes[i], 1);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 64, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                if (p[k])
                    fail_msg("byte %zu of %zu is not zero", k, sizes[i]);
            memset(p, (int)n, sizes[i]);
        }
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizes[i % PM_COUNT(sizes)]; k++)
            if (all[i][k] != (char)i)
                fail_msg("allocation %zu was overwritten at byte %zu", i, k);

    char *copy = pm_arena_strdup(&arena, "ab\0cd", 5);
    assert_memory_equal(copy, "ab\0cd", 6);
    assert_string_equal(pm_arena_strdup(&arena, NULL, 0), "");
    assert_null(pm_arena_alloc(&arena, SIZE_MAX / 2, 3));
    assert_null(pm_arena_alloc(&arena, SIZE_MAX - 10, 1));
    assert_null(pm_arena_strdup(&arena, "", SIZE_MAX));
    pm_arena_free(&arena);
    pm_arena_free(&arena);
}

static void test_map(void **state)
{
    (void)state;
    enum { N = 50000 };
    pm_map map = {0};
    static char keys[N][12];
    assert_int_equal(pm_map_get(&map, "x", 1, -5), -5);
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%d", i * 7);
        assert_int_equal(pm_map_set(&map, keys[i], strlen(keys[i]), i), PM_OK);
    }
    assert_int_equal(map.n, N);
    for (int i = 0; i < N; i += 2)
        assert_int_equal(pm_map_set(&map, keys[i], strlen(keys[i]), -i), PM_OK);
    assert_int_equal(map.n, N);
    for (int i = 0; i < N; i++) {
        char key[12];
        snprintf(key, sizeof(key), "%d", i * 7);
        assert_int_equal(pm_map_get(&map, key, strlen(key), INT32_MIN), i % 2 ? i : -i);
        snprintf(key, sizeof(key), "%d", i * 7 + 1);
        assert_int_equal(pm_map_get(&map, key, strlen(key), INT32_MIN), INT32_MIN);
    }
    /* Keys are bytes with a length: prefixes, NULs and the empty key are keys of their own. */
    assert_int_equal(pm_map_set(&map, "a\0b", 3, 1), PM_OK);
    assert_int_equal(pm_map_set(&map, "a\0c", 3, 2), PM_OK);
    assert_int_equal(pm_map_set(&map, "a", 1, 3), PM_OK);
    assert_int_equal(pm_map_set(&map, "", 0, 4), PM_OK);
    assert_int_equal(pm_map_get(&map, "a\0b", 3, 0), 1);
    assert_int_equal(pm_map_get(&map, "a\0c", 3, 0), 2);
    assert_int_equal(pm_map_get(&map, "a\0b", 1, 0), 3);
    assert_int_equal(pm_map_get(&map, "a\0b", 0, 0), 4);
    assert_int_equal(pm_map_get(&map, "a\0b", 2, 0), 0);
    pm_map_free(&map);
    assert_int_equal(pm_map_get(&map, "a", 1, 9), 9);
}

static size_t put_utf8(uint32_t c, char *to)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; --i > 0; c >>= 6)
        to[i] = (char)(0x80 | (c & 0x3F));
    to[0] = (char)(lead[n] | c);
    return n;
}

static void test_utf8_all(void **state)
{
    (void)state;
    char text[8];
    for (uint32_t c = 0; c < 0x200000; c++) {
        size_t n = put_utf8(c, text);
        bool good = c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
        if (pm_utf8_valid(text, n, NULL) != good)
            fail_msg("U+%04X is %s", c, good ? "refused" : "accepted");
        if (n > 1 && pm_utf8_valid(text, n - 1, NULL))
            fail_msg("U+%04X without its last byte is accepted", c);
    }
}

static void test_utf8_bad(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len, bad;
    } cases[] = {
        {"ab\x80", 3, 2},           /* a continuation alone */
        {"\xc0\x80", 2, 0},         /* overlong NUL */
        {"a\xc1\xbf", 3, 1},        /* overlong DEL */
        {"\xe0\x9f\xbf", 3, 0},     /* overlong of three bytes */
        {"\xf0\x8f\xbf\xbf", 4, 0}, /* overlong of four */
        {"xy\xed\xa0\x80", 5, 2},   /* surrogate */
        {"\xf4\x90\x80\x80", 4, 0}, /* past U+10FFFF */
        {"\xf5\x80\x80\x80", 4, 0}, /* no such lead */
        {"\xff", 1, 0},             /* never a byte of UTF-8 */
        {"\xc3(", 2, 0},            /* the second byte is none */
        {"\xe2\x82(", 3, 0},        /* the third */
        {"\xf0\x9f\x98(", 4, 0},    /* the fourth */
        {"ok \xf0\x9f\x98", 6, 3},  /* cut */
        {"\xc3\xa9\xe2\x82", 4, 2}, /* cut after a good one */
        {"\xc3\xa9\xc3\xa9z\xc3", 6, 5},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        size_t bad = 99;
        if (pm_utf8_valid(cases[i].text, cases[i].len, &bad))
            fail_msg("case %zu is accepted", i);
        if (bad != cases[i].bad)
            fail_msg("case %zu: first bad byte %zu instead of %zu", i, bad, cases[i].bad);
    }
    assert_true(pm_utf8_valid("", 0, NULL));
    assert_true(pm_utf8_valid("a\0b", 3, NULL));
}

static char directory[] = "base-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof(path), "%s/file", directory);
    unlink(path);
    return rmdir(directory);
}

static void test_files(void **state)
{
    (void)state;
    char path[64];
    static const char bytes[] = "one\0two\r\n\xff";
    pm_buf buf = {0};
    pm_error err = {0};
    snprintf(path, sizeof(path), "%s/file", directory);
    assert_int_equal(pm_read_file(path, 100, &buf, &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, path));
    assert_false(pm_is_file(path));

    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, 10, f), 10);
    fclose(f);
    assert_true(pm_is_file(path));
    assert_int_equal(pm_read_file(path, 10, &buf, &err), PM_OK);
    assert_int_equal(buf.len, 10);
    assert_memory_equal(buf.data, bytes, 10);
    assert_int_equal(buf.data[10], 0);
    pm_buf_free(&buf);

    assert_int_equal(pm_read_file(path, 9, &buf, &err), PM_ERR_LIMIT);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "10"));
    assert_null(buf.data);

    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(pm_read_file(path, 0, &buf, &err), PM_OK);
    assert_int_equal(buf.len, 0);
    pm_buf_free(&buf);

    assert_int_equal(pm_read_file(directory, 1000000, &buf, &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, directory));
    assert_false(pm_is_file(directory));
}

static void test_now(void **state)
{
    (void)state;
    double a = pm_now(), b = pm_now();
    assert_true(a > 0 && b >= a && b - a < 10);
}

/* Published values of XXH64 with seed 0; any pieces give the same. */
static void test_hash(void **state)
{
    static const struct {
        const char *text;
        uint64_t value;
    } cases[] = {
        {"", 0xef46db3751d8e999u},
        {"a", 0xd24ec4f1a98c6e5bu},
        {"abc", 0x44bc2cf5ad770999u},
        {"Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1u},
    };
    unsigned char data[300];
    pm_hash whole, parts;
    (void)state;
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        pm_hash_start(&whole);
        pm_hash_add(&whole, cases[i].text, strlen(cases[i].text));
        if (pm_hash_value(&whole) != cases[i].value)
            fail_msg("hash of '%s' is %llx", cases[i].text, (unsigned long long)pm_hash_value(&whole));
    }
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)(i * i);
    pm_hash_start(&whole);
    pm_hash_add(&whole, data, sizeof(data));
    for (size_t piece = 1; piece < 100; piece++) {
        pm_hash_start(&parts);
        for (size_t at = 0; at < sizeof(data); at += piece)
            pm_hash_add(&parts, data + at, sizeof(data) - at < piece ? sizeof(data) - at : piece);
        assert_true(pm_hash_value(&parts) == pm_hash_value(&whole));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash),  cmocka_unit_test(test_fail),     cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_buf),   cmocka_unit_test(test_grow),     cmocka_unit_test(test_arena),
        cmocka_unit_test(test_map),   cmocka_unit_test(test_utf8_all), cmocka_unit_test(test_utf8_bad),
        cmocka_unit_test(test_files), cmocka_unit_test(test_now),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
