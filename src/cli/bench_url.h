/* Measuring a server. */
#ifndef PM_BENCH_URL_H
#define PM_BENCH_URL_H

#include "cli.h"

/* polymath bench --url; an exit code. */
int pm_bench_url(const pm_args *args);

#endif
