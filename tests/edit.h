/* Edited copies of checkpoints, for tests of loading. */
#ifndef PM_TEST_EDIT_H
#define PM_TEST_EDIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files/checkpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUNDLED SOURCE_DIR "/models/default"

/* A tensor to be written. `data` belongs to the mapped checkpoint unless `owned`. */
typedef struct edit_tensor {
    char name[256];
    pm_dtype dtype;
    int rank;
    int64_t shape[PM_MAX_RANK];
    const void *data;
    void *owned;
    size_t bytes;
} edit_tensor;

typedef struct edit {
    pm_checkpoint *checkpoint;
    edit_tensor *tensors;
    size_t n, cap;
    json_t *config;
    const char *from;
    char dir[64];
} edit;

/* Begins with what the checkpoint in `from` holds. */
static inline void edit_open(edit *e, const char *from)
{
    pm_error err = {0};
    json_error_t where;
    char config[512];
    *e = (edit){.from = from};
    if (pm_checkpoint_open(&e->checkpoint, from, &err) != PM_OK)
        fail_msg("%s", err.message);
    e->n = pm_checkpoint_count(e->checkpoint);
    e->cap = 4 * e->n + 2048;
    e->tensors = calloc(e->cap, sizeof(*e->tensors));
    assert_non_null(e->tensors);
    for (size_t i = 0; i < e->n; i++) {
        const pm_stored *t = pm_checkpoint_at(e->checkpoint, i);
        edit_tensor *o = &e->tensors[i];
        snprintf(o->name, sizeof(o->name), "%s", t->name);
        o->dtype = t->dtype;
        o->rank = t->rank;
        memcpy(o->shape, t->shape, sizeof(o->shape));
        o->data = t->data;
        o->bytes = t->bytes;
    }
    snprintf(config, sizeof(config), "%s/config.json", from);
    e->config = json_load_file(config, 0, &where);
    assert_non_null(e->config);
}

static inline void edit_begin(edit *e)
{
    edit_open(e, BUNDLED);
}

/* The tensor of this name; the test fails when there is none. */
static inline edit_tensor *edit_find(edit *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->tensors[i].name, name) == 0)
            return &e->tensors[i];
    fail_msg("%s has no tensor %s", e->from, name);
    return NULL;
}

static inline void edit_drop(edit *e, const char *name)
{
    edit_tensor *t = edit_find(e, name);
    free(t->owned);
    *t = e->tensors[--e->n];
}

/* A further tensor with the given contents (copied; NULL: zeros). */
static inline edit_tensor *edit_add(edit *e, const char *name, pm_dtype dtype, int rank, const int64_t *shape,
                                    const void *data)
{
    assert_true(e->n < e->cap);
    edit_tensor *t = &e->tensors[e->n++];
    *t = (edit_tensor){.dtype = dtype, .rank = rank, .bytes = pm_dtype_size(dtype)};
    snprintf(t->name, sizeof(t->name), "%s", name);
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->bytes *= (size_t)shape[i];
    }
    t->owned = calloc(1, t->bytes);
    assert_non_null(t->owned);
    if (data)
        memcpy(t->owned, data, t->bytes);
    t->data = t->owned;
    return t;
}

/* Writes the tensors as one safetensors file. */
static inline void edit_write_tensors(const edit *e, const char *path)
{
    json_t *header = json_object();
    size_t at = 0;
    for (size_t i = 0; i < e->n; i++) {
        const edit_tensor *t = &e->tensors[i];
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", pm_dtype_name(t->dtype), "shape", shape,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    uint64_t length = strlen(text);
    fwrite(&length, 8, 1, f);
    fwrite(text, 1, length, f);
    for (size_t i = 0; i < e->n; i++)
        fwrite(e->tensors[i].data, 1, e->tensors[i].bytes, f);
    assert_int_equal(fclose(f), 0);
    free(text);
    json_decref(header);
}

/* Writes the edited checkpoint to a fresh directory (e->dir); the tokenizer's files are links. */
static inline void edit_write(edit *e)
{
    static const char *const links[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                        "generation_config.json"};
    char from[512], to[256];
    snprintf(e->dir, sizeof(e->dir), "/tmp/polymath-edit-XXXXXX");
    assert_non_null(mkdtemp(e->dir));
    for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++) {
        snprintf(from, sizeof(from), "%s/%s", e->from, links[i]);
        snprintf(to, sizeof(to), "%s/%s", e->dir, links[i]);
        if (access(from, F_OK) == 0)
            assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof(to), "%s/config.json", e->dir);
    assert_int_equal(json_dump_file(e->config, to, 0), 0);
    snprintf(to, sizeof(to), "%s/model.safetensors", e->dir);
    edit_write_tensors(e, to);
}

static inline void edit_end(edit *e)
{
    char command[128];
    for (size_t i = 0; i < e->n; i++)
        free(e->tensors[i].owned);
    free(e->tensors);
    json_decref(e->config);
    pm_checkpoint_close(e->checkpoint);
    if (*e->dir) {
        snprintf(command, sizeof(command), "rm -rf %s", e->dir);
        assert_int_equal(system(command), 0);
    }
}

#endif
