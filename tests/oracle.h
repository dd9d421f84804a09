/* Reads oracle files: safetensors with logits and ids of a reference implementation, made beside the checkpoints. */
#ifndef PM_TEST_ORACLE_H
#define PM_TEST_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "files/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Opens DIR/FILE through a directory in which it has the name that a checkpoint has. */
static inline pm_checkpoint *oracle_open(const char *dir, const char *file)
{
    char temp[] = "/tmp/polymath-oracle-XXXXXX", from[8192], real[8192], to[sizeof(temp) + 32];
    pm_checkpoint *oracle = NULL;
    pm_error err = {0};
    snprintf(from, sizeof(from), "%s/%s", dir, file);
    if (!realpath(from, real))
        fail_msg("%s: no such oracle", from);
    assert_non_null(mkdtemp(temp));
    snprintf(to, sizeof(to), "%s/model.safetensors", temp);
    assert_int_equal(symlink(real, to), 0);
    if (pm_checkpoint_open(&oracle, temp, &err) != PM_OK)
        fail_msg("%s", err.message);
    unlink(to);
    rmdir(temp);
    return oracle;
}

/* The tensor "PROMPT.WHAT", copied so that it is aligned; free it. */
static inline void *oracle_read(const pm_checkpoint *oracle, const char *prompt, const char *what, pm_dtype dtype,
                                int64_t shape[2])
{
    char name[128];
    snprintf(name, sizeof(name), "%s.%s", prompt, what);
    const pm_stored *t = pm_checkpoint_find(oracle, name);
    if (!t || t->dtype != dtype || t->rank > 2)
        fail_msg("the oracle has no usable tensor %s", name);
    shape[0] = t->shape[0];
    shape[1] = t->rank == 2 ? t->shape[1] : 1;
    void *copy = malloc(t->bytes);
    assert_non_null(copy);
    return memcpy(copy, t->data, t->bytes);
}

#endif
