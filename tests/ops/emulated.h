/* How much is repeated: on an emulated processor, which is slow, less. */
#ifndef PM_TEST_EMULATED_H
#define PM_TEST_EMULATED_H

#if defined(EMULATED)
enum {
    EVERY = 3,       /* of repetitions that differ in batch, chunk or shape alone */
    MOST_THREADS = 1 /* where levels are compared on one thread and on more */
};
#else
enum { EVERY = 1, MOST_THREADS = 5 };
#endif

#endif
