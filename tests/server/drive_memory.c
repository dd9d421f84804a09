/* Prints what pm_cache_budget says of four numbers. */
#include "server/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    printf("%" PRIu64 "\n", pm_cache_budget(strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10),
                                            strtoull(argv[3], NULL, 10), atoi(argv[4])));
    return 0;
}
