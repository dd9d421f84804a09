/* src/files/checkpoint: safetensors files, shards and their index. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/checkpoint.h"

static char directory[] = "checkpoint-XXXXXX";

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static const char *in_directory(const char *name)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return path;
}

/* Removes every file of the directory: each test begins with an empty one. */
static int empty_directory(void **state)
{
    (void)state;
    DIR *dir = opendir(directory);
    if (!dir)
        return -1;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && unlink(in_directory(entry->d_name)) != 0)
            rmdir(in_directory(entry->d_name));
    return closedir(dir);
}

static int remove_directory(void **state)
{
    return empty_directory(state) == 0 ? rmdir(directory) : -1;
}

static void write_bytes(const char *name, const void *data, size_t len)
{
    FILE *f = fopen(in_directory(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

/* Builds a safetensors file: the header and n bytes of data, byte i being first + i. */
static void build(pm_buf *out, const char *header, size_t n, int first)
{
    uint64_t len = strlen(header);
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)(len >> (8 * i));
    assert_int_equal(pm_buf_add(out, prefix, 8), PM_OK);
    assert_int_equal(pm_buf_add(out, header, len), PM_OK);
    for (size_t i = 0; i < n; i++) {
        char byte = (char)(first + (int)i);
        assert_int_equal(pm_buf_add(out, &byte, 1), PM_OK);
    }
}

static void write_tensors(const char *name, const char *header, size_t n, int first)
{
    pm_buf file = {0};
    build(&file, header, n, first);
    write_bytes(name, file.data, file.len);
    pm_buf_free(&file);
}

static pm_checkpoint *open_good(void)
{
    pm_checkpoint *checkpoint = NULL;
    pm_error err = {0};
    if (pm_checkpoint_open(&checkpoint, directory, &err) != PM_OK)
        fail_msg("%s", err.message);
    return checkpoint;
}

/* Opening must fail with this status, and the message have all of the parts (NULL: no demand). */
static void expect_failure(const char *label, int status, const char *part, const char *other, const char *third)
{
    pm_checkpoint *checkpoint = NULL;
    pm_error err = {0};
    const char *parts[] = {part, other, third};
    int got = pm_checkpoint_open(&checkpoint, directory, &err);
    if (got != status || checkpoint || err.code != (pm_status)status)
        fail_msg("%s: status %d instead of %d (%s)", label, got, status, err.message);
    for (size_t i = 0; i < PM_COUNT(parts); i++)
        if (parts[i] && !strstr(err.message, parts[i]))
            fail_msg("%s: '%s' does not mention '%s'", label, err.message, parts[i]);
    assert_int_equal(pm_checkpoint_open(&checkpoint, directory, NULL), status);
}

/* One tensor of every dtype, [2], and a scalar, an empty one and one of the highest rank; bytes in another order than
 * names. */
static const char every_dtype[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                  "\"f32\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                  "\"f16\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[8,12]},"
                                  "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[12,16]},"
                                  "\"e4m3\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[16,18]},"
                                  "\"e5m2\":{\"dtype\":\"F8_E5M2\",\"shape\":[2],\"data_offsets\":[18,20]},"
                                  "\"e8m0\":{\"dtype\":\"F8_E8M0\",\"shape\":[2],\"data_offsets\":[20,22]},"
                                  "\"u8\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[22,24]},"
                                  "\"i8\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[24,26]},"
                                  "\"u16\":{\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[26,30]},"
                                  "\"i16\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[30,34]},"
                                  "\"u32\":{\"dtype\":\"U32\",\"shape\":[2],\"data_offsets\":[34,42]},"
                                  "\"i32\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[42,50]},"
                                  "\"u64\":{\"dtype\":\"U64\",\"shape\":[2],\"data_offsets\":[50,66]},"
                                  "\"i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[66,82]},"
                                  "\"bool\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[82,84]},"
                                  "\"empty\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[84,84]},"
                                  "\"rank8\":{\"dtype\":\"U8\",\"shape\":[1,2,1,1,3,1,1,1],\"data_offsets\":[84,90]},"
                                  "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[90,91]}}  ";

static void test_every_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name, *dtype;
        int rank;
        size_t at, bytes;
    } expected[] = {
        {"bf16", "BF16", 1, 12, 4},    {"bool", "BOOL", 1, 82, 2},    {"e4m3", "F8_E4M3", 1, 16, 2},
        {"e5m2", "F8_E5M2", 1, 18, 2}, {"e8m0", "F8_E8M0", 1, 20, 2}, {"empty", "F32", 2, 84, 0},
        {"f16", "F16", 1, 8, 4},       {"f32", "F32", 1, 0, 8},       {"i16", "I16", 1, 30, 4},
        {"i32", "I32", 1, 42, 8},      {"i64", "I64", 1, 66, 16},     {"i8", "I8", 1, 24, 2},
        {"rank8", "U8", 8, 84, 6},     {"scalar", "U8", 0, 90, 1},    {"u16", "U16", 1, 26, 4},
        {"u32", "U32", 1, 34, 8},      {"u64", "U64", 1, 50, 16},     {"u8", "U8", 1, 22, 2},
    };
    write_tensors("model.safetensors", every_dtype, 91, 0);
    pm_checkpoint *checkpoint = open_good();
    assert_int_equal(pm_checkpoint_count(checkpoint), PM_COUNT(expected));
    assert_int_equal(pm_checkpoint_bytes(checkpoint), 91);
    for (size_t i = 0; i < PM_COUNT(expected); i++) {
        const pm_stored *t = pm_checkpoint_at(checkpoint, i);
        assert_string_equal(t->name, expected[i].name);
        assert_string_equal(pm_dtype_name(t->dtype), expected[i].dtype);
        assert_int_equal(t->rank, expected[i].rank);
        assert_int_equal(t->bytes, expected[i].bytes);
        if (t->rank == 1) {
            assert_int_equal(t->shape[0], 2);
            assert_int_equal(t->bytes, 2 * pm_dtype_size(t->dtype));
        }
        for (size_t k = 0; k < t->bytes; k++)
            assert_int_equal(((const unsigned char *)t->data)[k], expected[i].at + k);
        assert_ptr_equal(pm_checkpoint_find(checkpoint, expected[i].name), t);
        assert_string_equal(pm_checkpoint_file(checkpoint, t), in_directory("model.safetensors"));
    }
    assert_int_equal(pm_checkpoint_find(checkpoint, "rank8")->shape[4], 3);
    assert_null(pm_checkpoint_find(checkpoint, "__metadata__"));
    assert_null(pm_checkpoint_find(checkpoint, "f3"));
    assert_null(pm_checkpoint_find(checkpoint, ""));
    assert_int_equal(pm_checkpoint_check(checkpoint, NULL), PM_OK);
    pm_checkpoint_close(checkpoint);
    pm_checkpoint_close(NULL);
}

static void test_no_tensors(void **state)
{
    (void)state;
    write_tensors("model.safetensors", "{}", 0, 0);
    pm_checkpoint *checkpoint = open_good();
    assert_int_equal(pm_checkpoint_count(checkpoint), 0);
    assert_null(pm_checkpoint_find(checkpoint, "a"));
    pm_checkpoint_close(checkpoint);
}

#define ENTRY(dtype, shape, offsets) "{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        int status;
        const char *part, *other;
    } cases[] = {
        /* JSON */
        {"", 0, PM_ERR_FORMAT, "header", NULL},
        {" {}", 0, PM_ERR_FORMAT, "header", "{"},
        {"[]", 0, PM_ERR_FORMAT, "header", NULL},
        {"{\"w\":", 0, PM_ERR_FORMAT, "header", NULL},
        {"{} x", 0, PM_ERR_FORMAT, "header", NULL},
        {"{\"w\xff\":" ENTRY("\"U8\"", "[1]", "[0,1]") "}", 1, PM_ERR_FORMAT, "header", NULL},
        {"{\"w\\u0000x\":" ENTRY("\"U8\"", "[1]", "[0,1]") "}", 1, PM_ERR_FORMAT, "header", NULL},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[0,1]") ",\"w\":" ENTRY("\"U8\"", "[1]", "[1,2]") "}", 2, PM_ERR_FORMAT,
         "header", "w"},
        {"{\"w\":5}", 0, PM_ERR_FORMAT, "tensor w", "object"},
        {"{\"w\":null}", 0, PM_ERR_FORMAT, "tensor w", "object"},
        /* dtype */
        {"{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, PM_ERR_FORMAT, "tensor w", "dtype"},
        {"{\"w\":" ENTRY("7", "[1]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "dtype"},
        {"{\"w\":" ENTRY("\"F4\"", "[2]", "[0,1]") "}", 1, PM_ERR_UNSUPPORTED, "tensor w", "F4"},
        {"{\"w\":" ENTRY("\"F6_E2M3\"", "[4]", "[0,3]") "}", 3, PM_ERR_UNSUPPORTED, "tensor w", "F6_E2M3"},
        {"{\"w\":" ENTRY("\"F64\"", "[1]", "[0,8]") "}", 8, PM_ERR_UNSUPPORTED, "tensor w", "F64"},
        {"{\"w\":" ENTRY("\"f32\"", "[1]", "[0,4]") "}", 4, PM_ERR_UNSUPPORTED, "tensor w", "f32"},
        /* shape */
        {"{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, PM_ERR_FORMAT, "tensor w", "shape"},
        {"{\"w\":" ENTRY("\"U8\"", "1", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "shape"},
        {"{\"w\":" ENTRY("\"U8\"", "[-1]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "dimension 0"},
        {"{\"w\":" ENTRY("\"U8\"", "[1,1.0]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "dimension 1"},
        {"{\"w\":" ENTRY("\"U8\"", "[\"1\"]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "dimension 0"},
        {"{\"w\":" ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, PM_ERR_UNSUPPORTED, "tensor w", "9"},
        {"{\"w\":" ENTRY("\"U8\"", "[99999999999999999999]", "[0,1]") "}", 1, PM_ERR_FORMAT, "header", NULL},
        {"{\"w\":" ENTRY("\"F32\"", "[9223372036854775807]", "[0,4]") "}", 4, PM_ERR_FORMAT, "tensor w", "too large"},
        {"{\"w\":" ENTRY("\"U8\"", "[4294967296,4294967296]", "[0,0]") "}", 0, PM_ERR_FORMAT, "tensor w", "too large"},
        {"{\"w\":" ENTRY("\"F32\"", "[4611686018427387904]", "[0,0]") "}", 0, PM_ERR_FORMAT, "tensor w", "too large"},
        /* offsets */
        {"{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[0]") "}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[0,1,2]") "}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "{\"0\":0}") "}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[0.0,1.0]") "}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[-1,0]") "}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[1,0]") "}", 1, PM_ERR_FORMAT, "tensor w", "data_offsets"},
        {"{\"w\":" ENTRY("\"U8\"", "[2]", "[0,2]") "}", 1, PM_ERR_FORMAT, "tensor w", "byte 2"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]") "}", 1, PM_ERR_FORMAT,
         "tensor w", "9223372036854775807"},
        {"{\"w\":" ENTRY("\"U8\"", "[2]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "shape"},
        {"{\"w\":" ENTRY("\"U16\"", "[1]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "U16"},
        {"{\"w\":" ENTRY("\"U8\"", "[]", "[0,2]") "}", 2, PM_ERR_FORMAT, "tensor w", "shape"},
        {"{\"w\":" ENTRY("\"U8\"", "[0]", "[0,1]") "}", 1, PM_ERR_FORMAT, "tensor w", "shape"},
        /* cover */
        {"{\"w\":" ENTRY("\"U8\"", "[2]", "[0,2]") ",\"v\":" ENTRY("\"U8\"", "[2]", "[1,3]") "}", 3, PM_ERR_FORMAT,
         "tensors w and v", "overlap"},
        {"{\"w\":" ENTRY("\"U8\"", "[2]", "[0,2]") ",\"v\":" ENTRY("\"U8\"", "[2]", "[0,2]") "}", 2, PM_ERR_FORMAT,
         "overlap", "v"},
        {"{\"w\":" ENTRY("\"U8\"", "[4]", "[0,4]") ",\"v\":" ENTRY("\"U8\"", "[0]", "[2,2]") "}", 4, PM_ERR_FORMAT,
         "overlap", "v"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[1,2]") "}", 2, PM_ERR_FORMAT, "tensor w", "1 bytes before"},
        {"{\"v\":" ENTRY("\"U8\"", "[1]", "[0,1]") ",\"w\":" ENTRY("\"U8\"", "[1]", "[4,5]") "}", 5, PM_ERR_FORMAT,
         "tensor w", "3 bytes before"},
        {"{\"w\":" ENTRY("\"U8\"", "[1]", "[0,1]") "}", 3, PM_ERR_FORMAT, "last 2 bytes", NULL},
        {"{}", 1, PM_ERR_FORMAT, "last 1 bytes", NULL},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        write_tensors("model.safetensors", cases[i].header, cases[i].data, 0);
        expect_failure(cases[i].header, cases[i].status, "model.safetensors", cases[i].part, cases[i].other);
    }
}

/* The eight bytes before the header, and files that end early. */
static void test_bad_lengths(void **state)
{
    (void)state;
    static const struct {
        unsigned char prefix[8];
        size_t len;
        const char *part;
    } cases[] = {
        {{0}, 0, "0 bytes"},
        {{2}, 7, "7 bytes"},
        {{0}, 8, "begin"},
        {{3, 0, 0, 0, 0, 0, 0, 0}, 8, "3 bytes"},
        {{0, 0, 0, 8}, 8, "134217728 bytes"},
        {{255, 255, 255, 255, 255, 255, 255, 255}, 8, "18446744073709551615 bytes"},
        {{249, 255, 255, 255, 255, 255, 255, 255}, 8, "18446744073709551609 bytes"},
        {{0, 0, 0, 0, 0, 0, 0, 128}, 8, "9223372036854775808 bytes"},
    };
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        write_bytes("model.safetensors", cases[i].prefix, cases[i].len);
        expect_failure(cases[i].part, PM_ERR_FORMAT, "model.safetensors", cases[i].part, NULL);
    }
    pm_buf file = {0};
    build(&file, every_dtype, 91, 0);
    for (size_t len = 0; len < file.len; len++) {
        write_bytes("model.safetensors", file.data, len);
        expect_failure("truncated", PM_ERR_FORMAT, "model.safetensors", NULL, NULL);
    }
    pm_buf_free(&file);
}

static void test_bad_directories(void **state)
{
    (void)state;
    pm_checkpoint *checkpoint = NULL;
    pm_error err = {0};
    assert_int_equal(pm_checkpoint_open(&checkpoint, "no-such-directory", &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, "no-such-directory"));
    write_text("file", "x");
    assert_int_equal(pm_checkpoint_open(&checkpoint, in_directory("file"), &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, "not a directory"));
    assert_null(checkpoint);

    expect_failure("no file", PM_ERR_IO, "model.safetensors", "No such file", NULL);
    write_tensors("other.safetensors", "{}", 0, 0);
    expect_failure("another name", PM_ERR_IO, "model.safetensors", "No such file", NULL);
    assert_int_equal(mkdir(in_directory("model.safetensors"), 0700), 0);
    expect_failure("a directory", PM_ERR_IO, "model.safetensors", "regular file", NULL);
    assert_int_equal(rmdir(in_directory("model.safetensors")), 0);
    assert_int_equal(mkfifo(in_directory("model.safetensors"), 0600), 0);
    expect_failure("a pipe", PM_ERR_IO, "model.safetensors", "regular file", NULL);
}

/* ---- shards ---- */

#define INDEX "model.safetensors.index.json"

static void write_two_shards(void)
{
    write_tensors("s1.safetensors",
                  "{\"b\":" ENTRY("\"U8\"", "[2]", "[0,2]") ",\"both\":" ENTRY("\"U8\"", "[1]", "[2,3]") "}", 3, 10);
    write_tensors("s2.safetensors",
                  "{\"both\":" ENTRY("\"U8\"", "[1]", "[0,1]") ",\"a\":" ENTRY("\"U8\"", "[2]", "[1,3]") "}", 3, 20);
}

static void test_shards(void **state)
{
    (void)state;
    write_two_shards();
    /* Neither of these is named by an index. */
    write_text("model.safetensors", "not read");
    assert_int_equal(mkdir(in_directory("sub"), 0700), 0);
    write_text("sub.safetensors", "not read");
    write_text(INDEX,
               "{\"metadata\":{\"total_size\":5},\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\","
               "\"both\":\"s2.safetensors\"}}");
    pm_checkpoint *checkpoint = open_good();
    assert_int_equal(pm_checkpoint_count(checkpoint), 3);
    assert_int_equal(pm_checkpoint_bytes(checkpoint), 5);
    static const struct {
        const char *name, *file;
        int first;
    } expected[] = {{"a", "s2.safetensors", 21}, {"b", "s1.safetensors", 10}, {"both", "s2.safetensors", 20}};
    for (size_t i = 0; i < PM_COUNT(expected); i++) {
        const pm_stored *t = pm_checkpoint_at(checkpoint, i);
        assert_string_equal(t->name, expected[i].name);
        assert_string_equal(pm_checkpoint_file(checkpoint, t), in_directory(expected[i].file));
        assert_int_equal(*(const unsigned char *)t->data, expected[i].first);
    }
    pm_checkpoint_close(checkpoint);

    /* The index decides, the other way round; a tensor that it does not list is passed over. */
    write_text(INDEX, "{\"weight_map\":{\"both\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}");
    checkpoint = open_good();
    assert_int_equal(pm_checkpoint_count(checkpoint), 2);
    assert_int_equal(pm_checkpoint_bytes(checkpoint), 3);
    assert_int_equal(*(const unsigned char *)pm_checkpoint_find(checkpoint, "both")->data, 12);
    assert_null(pm_checkpoint_find(checkpoint, "b"));
    pm_checkpoint_close(checkpoint);
}

static void test_bad_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        int status;
        const char *part, *other, *third;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"s3.safetensors\"}}", PM_ERR_IO, "s3.safetensors", "No such file", NULL},
        {"{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s3.safetensors\"}}", PM_ERR_IO, "s3.safetensors", NULL,
         NULL},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "s1.safetensors"},
        {"{\"weight_map\":{\"b\":\"s1.safetensors\",\"zz\":\"s1.safetensors\"}}", PM_ERR_FORMAT, INDEX, "tensor zz",
         "s1.safetensors"},
        {"{\"weight_map\":{\"__metadata__\":\"s1.safetensors\"}}", PM_ERR_FORMAT, INDEX, "__metadata__", NULL},
        {"{\"weight_map\":{\"a\":\"sub/s1.safetensors\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "sub/s1.safetensors"},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "../s1.safetensors"},
        {"{\"weight_map\":{\"a\":\"/s1.safetensors\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "plain"},
        {"{\"weight_map\":{\"a\":\"..\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "plain"},
        {"{\"weight_map\":{\"a\":\".\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "plain"},
        {"{\"weight_map\":{\"a\":\"\"}}", PM_ERR_FORMAT, INDEX, "tensor a", "plain"},
        {"{\"weight_map\":{\"a\":7}}", PM_ERR_FORMAT, INDEX, "tensor a", "plain"},
        {"{\"weight_map\":{\"a\":\"x\\u0000y\"}}", PM_ERR_FORMAT, INDEX, "line 1", NULL},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\n\"a\":\"s2.safetensors\"}}", PM_ERR_FORMAT, INDEX, "line 2",
         NULL},
        {"{\"weight_map\":{}}", PM_ERR_FORMAT, INDEX, "weight_map", NULL},
        {"{\"weight_map\":[]}", PM_ERR_FORMAT, INDEX, "weight_map", NULL},
        {"{}", PM_ERR_FORMAT, INDEX, "weight_map", NULL},
        {"[]", PM_ERR_FORMAT, INDEX, "object", NULL},
        {"", PM_ERR_FORMAT, INDEX, "line 1", NULL},
        {"{\"weight_map\":{\"a\":\"" INDEX "\"}}", PM_ERR_FORMAT, INDEX, NULL, NULL},
    };
    write_two_shards();
    /* A good single file: the index wins, even when it is bad. */
    write_tensors("model.safetensors", "{\"a\":" ENTRY("\"U8\"", "[1]", "[0,1]") "}", 1, 0);
    for (size_t i = 0; i < PM_COUNT(cases); i++) {
        write_text(INDEX, cases[i].index);
        expect_failure(cases[i].index, cases[i].status, cases[i].part, cases[i].other, cases[i].third);
    }
    unlink(in_directory(INDEX));
    assert_int_equal(symlink("nowhere", in_directory(INDEX)), 0);
    expect_failure("broken link", PM_ERR_IO, INDEX, NULL, NULL);

    /* What a shard holds is validated even where the index takes nothing from it. */
    unlink(in_directory(INDEX));
    write_text(INDEX, "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
    write_tensors("s1.safetensors",
                  "{\"b\":" ENTRY("\"U8\"", "[2]", "[0,2]") ",\"unlisted\":" ENTRY("\"U8\"", "[1]", "[1,2]") "}", 2, 0);
    expect_failure("bad unlisted tensor", PM_ERR_FORMAT, "s1.safetensors", "unlisted", "overlap");
}

/* ---- after opening ---- */

static void test_shrinking(void **state)
{
    (void)state;
    write_two_shards();
    write_text(INDEX, "{\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
    pm_checkpoint *checkpoint = open_good();
    pm_error err = {0};
    assert_int_equal(pm_checkpoint_check(checkpoint, &err), PM_OK);

    struct stat st;
    assert_int_equal(stat(in_directory("s2.safetensors"), &st), 0);
    assert_int_equal(truncate(in_directory("s2.safetensors"), st.st_size + 10), 0);
    assert_int_equal(pm_checkpoint_check(checkpoint, &err), PM_OK);
    assert_int_equal(truncate(in_directory("s2.safetensors"), st.st_size - 1), 0);
    assert_int_equal(pm_checkpoint_check(checkpoint, &err), PM_ERR_IO);
    assert_non_null(strstr(err.message, "s2.safetensors"));
    assert_non_null(strstr(err.message, "shorter"));
    assert_int_equal(truncate(in_directory("s2.safetensors"), st.st_size), 0);
    assert_int_equal(pm_checkpoint_check(checkpoint, &err), PM_OK);

    /* Another file in its place does not matter: the mapped one lives on. */
    unlink(in_directory("s1.safetensors"));
    write_text("s1.safetensors", "short");
    assert_int_equal(pm_checkpoint_check(checkpoint, &err), PM_OK);
    assert_int_equal(*(const unsigned char *)pm_checkpoint_find(checkpoint, "b")->data, 10);
    pm_checkpoint_close(checkpoint);
}

static void test_many_tensors(void **state)
{
    (void)state;
    enum { N = 100000 };
    pm_buf header = {0};
    char name[64];
    for (int i = 0; i < N; i++)
        assert_int_equal(
            pm_buf_printf(&header,
                          "%c\"model.layers.%d.mlp.experts.%d.up_proj.weight\":" ENTRY("\"U8\"", "[1]", "[%d,%d]"),
                          i ? ',' : '{', i % 97, i, i, i + 1),
            PM_OK);
    assert_int_equal(pm_buf_add(&header, "}", 1), PM_OK);
    write_tensors("model.safetensors", header.data, N, 0);
    pm_buf_free(&header);
    double start = pm_now();
    pm_checkpoint *checkpoint = open_good();
    double seconds = pm_now() - start;
    assert_int_equal(pm_checkpoint_count(checkpoint), N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "model.layers.%d.mlp.experts.%d.up_proj.weight", i % 97, i);
        const pm_stored *t = pm_checkpoint_find(checkpoint, name);
        assert_non_null(t);
        assert_int_equal(*(const unsigned char *)t->data, i & 255);
        if (i)
            assert_true(strcmp(pm_checkpoint_at(checkpoint, (size_t)i - 1)->name,
                               pm_checkpoint_at(checkpoint, (size_t)i)->name) < 0);
    }
    print_message("%d tensors opened in %.0f ms\n", N, seconds * 1000);
    assert_true(seconds < 10);
    pm_checkpoint_close(checkpoint);
}

/* ---- damage ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Opens what is there. It may fail, but then it names a file of the directory; or succeed, and then every byte that it
 * promises is readable and every size adds up. Returns the sum of the bytes, so that the reads are not left out. */
static unsigned open_damaged(uint64_t seed)
{
    pm_checkpoint *checkpoint = NULL;
    pm_error err = {0};
    unsigned sum = 0;
    int status = pm_checkpoint_open(&checkpoint, directory, &err);
    if (status != PM_OK) {
        if (status != PM_ERR_FORMAT && status != PM_ERR_UNSUPPORTED && status != PM_ERR_IO)
            fail_msg("seed %llu: status %d (%s)", (unsigned long long)seed, status, err.message);
        if (!strstr(err.message, directory))
            fail_msg("seed %llu: '%s' names no file", (unsigned long long)seed, err.message);
        return 0;
    }
    for (size_t i = 0; i < pm_checkpoint_count(checkpoint); i++) {
        const pm_stored *t = pm_checkpoint_at(checkpoint, i);
        size_t bytes = pm_dtype_size(t->dtype);
        for (int d = 0; d < t->rank; d++)
            bytes *= (size_t)t->shape[d];
        if (bytes != t->bytes || !pm_checkpoint_find(checkpoint, t->name))
            fail_msg("seed %llu: tensor %s", (unsigned long long)seed, t->name);
        for (size_t k = 0; k < t->bytes; k++)
            sum += ((const unsigned char *)t->data)[k];
    }
    pm_checkpoint_close(checkpoint);
    return sum;
}

/* Changes one to three bytes, half of the time into one that the format uses, and sometimes cuts the end off. */
static size_t damage(char *bytes, size_t len, uint64_t *random)
{
    static const char spice[] = "{}[]\":,\\-.e0123456789UFI/";
    for (uint64_t k = next_random(random) % 3 + 1; k > 0; k--) {
        char *at = bytes + next_random(random) % len;
        switch (next_random(random) % 4) {
        case 0: *at = (char)next_random(random); break;
        case 1: *at ^= (char)(1 << next_random(random) % 8); break;
        default: *at = spice[next_random(random) % (sizeof(spice) - 1)];
        }
    }
    return next_random(random) % 8 ? len : next_random(random) % len;
}

static void test_damaged_file(void **state)
{
    (void)state;
    pm_buf valid = {0}, copy = {0};
    unsigned opened = 0;
    build(&valid, every_dtype, 91, 0);
    for (uint64_t seed = 0; seed < 2000; seed++) {
        uint64_t random = seed;
        copy.len = 0;
        assert_int_equal(pm_buf_add(&copy, valid.data, valid.len), PM_OK);
        write_bytes("model.safetensors", copy.data, damage(copy.data, copy.len, &random));
        opened += open_damaged(seed) != 0;
    }
    print_message("%u of 2000 damaged files could be opened\n", opened);
    pm_buf_free(&valid);
    pm_buf_free(&copy);
}

static void test_damaged_index(void **state)
{
    (void)state;
    static const char valid[] = "{\"metadata\":{\"total_size\":5},\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":"
                                "\"s1.safetensors\",\"both\":\"s2.safetensors\"}}";
    write_two_shards();
    for (uint64_t seed = 0; seed < 1000; seed++) {
        char copy[sizeof(valid)];
        uint64_t random = seed;
        memcpy(copy, valid, sizeof(valid));
        write_bytes(INDEX, copy, damage(copy, sizeof(valid) - 1, &random));
        open_damaged(seed);
    }
}

/* ---- real checkpoints ---- */

static void check_model(const char *dir)
{
    pm_checkpoint *checkpoint = NULL;
    pm_error err = {0};
    uint64_t bytes = 0;
    if (pm_checkpoint_open(&checkpoint, dir, &err) != PM_OK || pm_checkpoint_check(checkpoint, &err) != PM_OK)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < pm_checkpoint_count(checkpoint); i++) {
        const pm_stored *t = pm_checkpoint_at(checkpoint, i);
        bytes += t->bytes;
        assert_ptr_equal(pm_checkpoint_find(checkpoint, t->name), t);
    }
    if (!bytes || bytes != pm_checkpoint_bytes(checkpoint))
        fail_msg("%s: %llu bytes of tensors", dir, (unsigned long long)bytes);
    print_message("%s: %zu tensors, %llu bytes\n", dir, pm_checkpoint_count(checkpoint), (unsigned long long)bytes);
    pm_checkpoint_close(checkpoint);
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

#define TEST(name) cmocka_unit_test_setup(name, empty_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_dtype),     TEST(test_no_tensors),   TEST(test_bad_headers),   TEST(test_bad_lengths),
        TEST(test_bad_directories), TEST(test_shards),       TEST(test_bad_indexes),   TEST(test_shrinking),
        TEST(test_many_tensors),    TEST(test_damaged_file), TEST(test_damaged_index), TEST(test_models),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
