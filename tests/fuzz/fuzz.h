/* A fuzz target: every fuzz_NAME.c defines this one function. With clang and -DPM_FUZZ=ON (preset fuzz) it is linked to
 * libFuzzer as fuzz_NAME; always it is linked to replay.c as replay_NAME, and ctest runs that over corpus/NAME. */
#ifndef PM_FUZZ_H
#define PM_FUZZ_H

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

/* Takes any bytes and returns 0; aborts when something that must hold does not. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process, saying what does not hold. */
#define PM_FUZZ_CHECK(condition, ...)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fputc('\n', stderr);                                                                                       \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
