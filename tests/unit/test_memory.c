/* Rows and states of the CPU backend: growth, forks, cuts, sizes. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pm_cpu cpu; /* which has no threads: only its count of bytes is used */

static const pm_rows_spec spec = {.ratio = 1, .planes = 4, .width = 6};

/* Everything that was made is freed. */
static int nothing_held(void **state)
{
    (void)state;
    return pm_cpu_held(&cpu.base) != 0;
}

static pm_rows *new_rows(pm_kv_type type)
{
    pm_rows *rows;
    pm_error err;
    if (pm_cpu_rows_new(&cpu.base, &spec, type, &rows, &err) != PM_OK)
        fail_msg("rows: %s", err.message);
    assert_int_equal(pm_cpu_rows_length(rows), 0);
    return rows;
}

static float *element(const pm_rows *rows, int64_t row, int plane, int column)
{
    float *data = pm_rows_plane(rows, row / PM_BLOCK_ROWS, plane);
    return data + row % PM_BLOCK_ROWS * spec.width + column;
}

/* Appends n rows whose elements tell row, plane, column and `mark`. */
static void append(pm_rows *rows, int n, float mark)
{
    assert_int_equal(pm_rows_reserve(rows, n, NULL), PM_OK);
    for (int64_t row = rows->length; row < rows->length + n; row++)
        for (int plane = 0; plane < spec.planes; plane++)
            for (int column = 0; column < spec.width; column++)
                *element(rows, row, plane, column) = (float)(row * 100 + plane * 10 + column) + mark;
    rows->length += n;
}

static void check(const pm_rows *rows, int64_t first, int64_t last, float mark)
{
    for (int64_t row = first; row < last; row++)
        for (int plane = 0; plane < spec.planes; plane++)
            for (int column = 0; column < spec.width; column++)
                if (*element(rows, row, plane, column) != (float)(row * 100 + plane * 10 + column) + mark)
                    fail_msg("row %d, plane %d, column %d holds %g", (int)row, plane, column,
                             (double)*element(rows, row, plane, column));
}

static void test_growth(void **state)
{
    (void)state;
    pm_rows *rows = new_rows(PM_KV_F32);
    for (int i = 0; i < 50; i++)
        append(rows, 1 + i % 9, 0.5f);
    check(rows, 0, pm_cpu_rows_length(rows), 0.5f);
    int64_t length = pm_cpu_rows_length(rows);
    assert_int_equal(rows->n_blocks, (length + 63) / 64);
    assert_int_equal(pm_rows_reserve(rows, 1000, NULL), PM_OK); /* room alone is no row */
    assert_int_equal(pm_cpu_rows_length(rows), length);
    pm_cpu_rows_truncate(&cpu.base, rows, length);
    assert_int_equal(rows->n_blocks, (length + 63) / 64);
    pm_cpu_rows_free(&cpu.base, rows);
    pm_cpu_rows_free(&cpu.base, NULL);
}

static void test_truncate(void **state)
{
    (void)state;
    static const int cuts[] = {200, 193, 192, 129, 128, 127, 65, 64, 63, 1, 0};
    pm_rows *rows = new_rows(PM_KV_F32);
    append(rows, 200, 0);
    for (size_t i = 0; i < PM_COUNT(cuts); i++) {
        pm_cpu_rows_truncate(&cpu.base, rows, cuts[i]);
        assert_int_equal(pm_cpu_rows_length(rows), cuts[i]);
        assert_int_equal(rows->n_blocks, (cuts[i] + 63) / 64);
        check(rows, 0, cuts[i], 0);
    }
    append(rows, 70, 0.25f);
    pm_cpu_rows_truncate(&cpu.base, rows, 71); /* longer than it is: nothing happens */
    pm_cpu_rows_truncate(&cpu.base, rows, -1);
    assert_int_equal(pm_cpu_rows_length(rows), 70);
    check(rows, 0, 70, 0.25f);
    pm_cpu_rows_free(&cpu.base, rows);
}

static void test_fork(void **state)
{
    (void)state;
    pm_rows *a = new_rows(PM_KV_F32), *b, *c;
    append(a, 100, 0);
    assert_int_equal(pm_cpu_rows_fork(&cpu.base, a, 100, &b, NULL), PM_OK);
    assert_int_equal(pm_cpu_rows_fork(&cpu.base, b, 70, &c, NULL), PM_OK);
    assert_ptr_equal(a->blocks[0], b->blocks[0]);
    assert_ptr_equal(a->blocks[1], c->blocks[1]);
    assert_int_equal(a->blocks[1]->references, 3);

    append(b, 50, 0.5f); /* a block that others read is copied before the write */
    append(c, 10, 0.25f);
    append(a, 3, 0.75f);
    assert_ptr_equal(a->blocks[0], b->blocks[0]);
    assert_ptr_equal(a->blocks[0], c->blocks[0]);
    assert_ptr_not_equal(a->blocks[1], b->blocks[1]);
    assert_ptr_not_equal(a->blocks[1], c->blocks[1]);
    assert_int_equal(pm_cpu_held(&cpu.base), 5 * a->block_bytes); /* the first, three second ones, b's third */
    check(a, 0, 100, 0);
    check(a, 100, 103, 0.75f);
    check(b, 0, 100, 0);
    check(b, 100, 150, 0.5f);
    check(c, 0, 70, 0);
    check(c, 70, 80, 0.25f);

    pm_cpu_rows_free(&cpu.base, a); /* the others outlive the first */
    check(b, 0, 100, 0);
    check(c, 0, 70, 0);
    assert_int_equal(b->blocks[0]->references, 2);
    pm_cpu_rows_free(&cpu.base, b);
    assert_int_equal(c->blocks[0]->references, 1);
    pm_block *kept = c->blocks[1];
    append(c, 1, 0.25f); /* alone again: no copy */
    assert_ptr_equal(c->blocks[1], kept);
    pm_cpu_rows_free(&cpu.base, c);
}

/* A cut into a shared block, then a write, must not show in the other handle. */
static void test_cut_then_write(void **state)
{
    (void)state;
    pm_rows *a = new_rows(PM_KV_F32), *b, *empty;
    append(a, 130, 0);
    assert_int_equal(pm_cpu_rows_fork(&cpu.base, a, 130, &b, NULL), PM_OK);
    pm_cpu_rows_truncate(&cpu.base, b, 10);
    append(b, 100, 0.5f);
    check(a, 0, 130, 0);
    check(b, 0, 10, 0);
    check(b, 10, 110, 0.5f);
    assert_int_equal(pm_cpu_rows_fork(&cpu.base, a, 0, &empty, NULL), PM_OK);
    append(empty, 2, 0.125f);
    check(empty, 0, 2, 0.125f);
    check(a, 0, 130, 0);
    pm_cpu_rows_free(&cpu.base, empty);
    pm_cpu_rows_free(&cpu.base, b);
    pm_cpu_rows_free(&cpu.base, a);
}

static void test_refusals(void **state)
{
    (void)state;
    pm_rows *out = (pm_rows *)&out;
    pm_error err;
    pm_rows_spec bad = spec;
    bad.ratio = 0;
    assert_int_equal(pm_cpu_rows_new(&cpu.base, &bad, PM_KV_F16, &out, &err), PM_ERR_INVALID);
    assert_string_equal(err.message, "cache rows of 0 tokens are not possible");
    bad = spec;
    bad.width = 0;
    assert_int_equal(pm_cpu_rows_new(&cpu.base, &bad, PM_KV_F16, &out, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "4 planes of 0 elements"));
    pm_rows *rows = new_rows(PM_KV_F16);
    assert_int_equal(pm_cpu_rows_fork(&cpu.base, rows, 1, &out, &err), PM_ERR_INVALID);
    assert_non_null(strstr(err.message, "fork 1 rows of a cache of 0"));
    assert_int_equal(pm_rows_reserve(rows, 1, NULL), PM_OK);
    rows->length = 1;
    assert_int_equal(pm_rows_reserve(rows, INT64_MAX, &err), PM_ERR_MEMORY);
    assert_int_equal(pm_cpu_rows_length(rows), 1);
    pm_cpu_rows_free(&cpu.base, rows);
    assert_ptr_equal(out, &out);

    pm_state *none = (pm_state *)&none;
    assert_int_equal(pm_cpu_state_new(&cpu.base, &(pm_state_spec){-1}, &none, &err), PM_ERR_INVALID);
    assert_int_equal(pm_cpu_state_new(&cpu.base, &(pm_state_spec){INT64_MAX / 2}, &none, &err), PM_ERR_MEMORY);
    assert_ptr_equal(none, &none);
}

static void test_bytes(void **state)
{
    (void)state;
    pm_rows_spec wide = {.ratio = 1, .planes = 4, .width = 128};
    uint64_t f16 = pm_cpu_rows_bytes(&wide, PM_KV_F16, 64), f32 = pm_cpu_rows_bytes(&wide, PM_KV_F32, 64);
    assert_int_equal(pm_cpu_rows_bytes(&wide, PM_KV_F16, 0), 0);
    assert_int_equal(pm_cpu_rows_bytes(&wide, PM_KV_F16, 1), f16);
    assert_int_equal(pm_cpu_rows_bytes(&wide, PM_KV_F16, 65), 2 * f16);
    assert_int_equal(pm_cpu_rows_bytes(&wide, PM_KV_F16, 1 << 20), (1 << 14) * f16);
    assert_in_range(f16, 4 * 128 * 64 * 2, 4 * 128 * 64 * 2 + 64); /* a header at most */
    assert_in_range(f32, 4 * 128 * 64 * 4, 4 * 128 * 64 * 4 + 64);
    assert_in_range(pm_cpu_rows_bytes(&wide, PM_KV_Q8, 64), 4 * 64 * (128 + 2 * 4), 4 * 64 * (128 + 2 * 4) + 64);
    assert_int_equal(pm_kv_bytes(PM_KV_Q8, 1), 5);
    assert_int_equal(pm_kv_bytes(PM_KV_Q8, 64), 68);
    assert_int_equal(pm_kv_bytes(PM_KV_Q8, 65), 73);
    assert_int_equal(pm_kv_bytes(PM_KV_F16, 65), 130);
    assert_int_equal(pm_kv_bytes(PM_KV_F32, 65), 260);
}

static void test_states(void **state)
{
    (void)state;
    pm_state *a, *b;
    pm_state_spec some = {.count = 1001};
    assert_int_equal(pm_cpu_state_new(&cpu.base, &some, &a, NULL), PM_OK);
    assert_int_equal(pm_cpu_state_new(&cpu.base, &some, &b, NULL), PM_OK);
    assert_int_equal((uintptr_t)a->data % 64, 0);
    for (int i = 0; i < 1001; i++) {
        assert_true(a->data[i] == 0);
        a->data[i] = (float)i;
    }
    pm_cpu_state_copy(&cpu.base, b, a);
    assert_memory_equal(b->data, a->data, 1001 * sizeof(float));
    pm_cpu_state_zero(&cpu.base, a);
    for (int i = 0; i < 1001; i++)
        assert_true(a->data[i] == 0 && b->data[i] == (float)i);
    pm_cpu_state_free(&cpu.base, a);
    pm_cpu_state_free(&cpu.base, b);
    pm_cpu_state_free(&cpu.base, NULL);
}

/* Rows and states leave and come back bit for bit, in pieces that do not fit the blocks. */
static void test_export(void **state)
{
    static const int pieces[] = {1, 63, 64, 7, 65};
    (void)state;
    for (int type = 0; type <= PM_KV_Q8; type++) {
        pm_rows *rows = new_rows((pm_kv_type)type), *copy = new_rows((pm_kv_type)type), *fork;
        pm_error err = {0};
        size_t row = (size_t)spec.planes * pm_kv_bytes((pm_kv_type)type, spec.width);
        unsigned char data[200 * 4 * 6 * 4], again[sizeof(data)];
        for (size_t i = 0; i < sizeof(data); i++)
            data[i] = (unsigned char)(i * 31 + i / 251);
        int64_t at = 0;
        for (size_t i = 0; i < PM_COUNT(pieces); at += pieces[i++])
            assert_int_equal(pm_cpu_rows_import(&cpu.base, rows, pieces[i], data + (size_t)at * row, &err), PM_OK);
        assert_int_equal(pm_cpu_rows_length(rows), 200);
        assert_int_equal(pm_cpu_rows_export(&cpu.base, rows, 0, 200, again, &err), PM_OK);
        assert_memory_equal(data, again, 200 * row);
        assert_int_equal(pm_cpu_rows_export(&cpu.base, rows, 60, 70, again, &err), PM_OK);
        assert_memory_equal(data + 60 * row, again, 70 * row);
        /* an import after a fork leaves the original alone */
        assert_int_equal(pm_cpu_rows_fork(&cpu.base, rows, 100, &fork, &err), PM_OK);
        assert_int_equal(pm_cpu_rows_import(&cpu.base, fork, 30, data, &err), PM_OK);
        assert_int_equal(pm_cpu_rows_export(&cpu.base, rows, 100, 30, again, &err), PM_OK);
        assert_memory_equal(data + 100 * row, again, 30 * row);
        assert_int_equal(pm_cpu_rows_export(&cpu.base, fork, 100, 30, again, &err), PM_OK);
        assert_memory_equal(data, again, 30 * row);
        assert_int_equal(pm_cpu_rows_export(&cpu.base, rows, 190, 11, again, &err), PM_ERR_INVALID);
        assert_non_null(strstr(err.message, "200"));
        assert_int_equal(pm_cpu_rows_export(&cpu.base, rows, -1, 1, again, &err), PM_ERR_INVALID);
        pm_cpu_rows_free(&cpu.base, rows);
        pm_cpu_rows_free(&cpu.base, copy);
        pm_cpu_rows_free(&cpu.base, fork);
    }
    const float in[5] = {1, -0.0f, 3e-40f, 4, 5};
    float out[5];
    pm_state *a;
    assert_int_equal(pm_cpu_state_new(&cpu.base, &(pm_state_spec){5}, &a, NULL), PM_OK);
    assert_int_equal(pm_cpu_state_import(&cpu.base, a, in, NULL), PM_OK);
    assert_int_equal(pm_cpu_state_export(&cpu.base, a, out, NULL), PM_OK);
    assert_memory_equal(in, out, sizeof(in));
    pm_cpu_state_free(&cpu.base, a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_export, nothing_held),
        cmocka_unit_test_teardown(test_growth, nothing_held),
        cmocka_unit_test_teardown(test_truncate, nothing_held),
        cmocka_unit_test_teardown(test_fork, nothing_held),
        cmocka_unit_test_teardown(test_cut_then_write, nothing_held),
        cmocka_unit_test_teardown(test_refusals, nothing_held),
        cmocka_unit_test_teardown(test_bytes, nothing_held),
        cmocka_unit_test_teardown(test_states, nothing_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
