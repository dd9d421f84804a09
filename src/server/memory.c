/* How much memory timelines may take. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t pm_cache_budget(uint64_t available, uint64_t weights, uint64_t timeline, int parallel)
{
    const uint64_t least = (uint64_t)256 << 20; /* for the process itself, and what others do meanwhile */
    uint64_t margin = available / 10 > least ? available / 10 : least;
    /* Weights that do not fit are read from the disk again and again; timelines must not be. */
    uint64_t room = available / 4;
    if (weights < available && available - weights > margin && available - weights - margin > room)
        room = available - weights - margin;
    /* For each answer in the making a full timeline, and three that are kept. */
    uint64_t most = timeline > UINT64_MAX / 4 / (uint64_t)parallel ? UINT64_MAX : timeline * 4 * (uint64_t)parallel;
    return room < most ? room : most;
}

/* The number after `name` in a file of lines such as "MemAvailable:  123 kB" or "123"; UINT64_MAX without one. */
static uint64_t number_in(const char *path, const char *name)
{
    char line[256], *end;
    uint64_t found = UINT64_MAX;
    size_t n = strlen(name);
    FILE *file = fopen(path, "re");
    while (file && found == UINT64_MAX && fgets(line, sizeof(line), file)) {
        if (strncmp(line, name, n) != 0)
            continue;
        unsigned long long number = strtoull(line + n, &end, 10);
        found = end > line + n ? number : UINT64_MAX;
    }
    if (file)
        fclose(file);
    return found;
}

uint64_t pm_memory_available(void)
{
    uint64_t kilobytes = number_in("/proc/meminfo", "MemAvailable:");
    uint64_t free = kilobytes > UINT64_MAX / 1024 ? UINT64_MAX : kilobytes * 1024;
    /* A container may have less than the machine; what its files take in the page cache can be taken back. */
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max", ""),
             used = number_in("/sys/fs/cgroup/memory.stat", "anon ");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t left = limit > used ? limit - used : 0;
        free = left < free ? left : free;
    }
    return free;
}
