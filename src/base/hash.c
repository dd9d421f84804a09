#include "base/base.h"

#include <string.h>

/* XXH64 (Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), seed 0. */
#define P1 0x9e3779b185ebca87u
#define P2 0xc2b2ae3d27d4eb4fu
#define P3 0x165667b19e3779f9u
#define P4 0x85ebca77c2b2ae63u
#define P5 0x27d4eb2f165667c5u

static uint64_t rotate(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

/* A little-endian number of n bytes. */
static uint64_t number(const unsigned char *s, int n)
{
    uint64_t x = 0;
    for (int i = n; i-- > 0;)
        x = x << 8 | s[i];
    return x;
}

static uint64_t round_of(uint64_t sum, uint64_t word)
{
    return rotate(sum + word * P2, 31) * P1;
}

static void stripe(pm_hash *hash, const unsigned char *s)
{
    for (int i = 0; i < 4; i++)
        hash->sum[i] = round_of(hash->sum[i], number(s + 8 * i, 8));
}

void pm_hash_start(pm_hash *hash)
{
    *hash = (pm_hash){.sum = {P1 + P2, P2, 0, 0 - P1}};
}

void pm_hash_add(pm_hash *hash, const void *data, size_t n)
{
    const unsigned char *s = data;
    size_t held = (size_t)(hash->n % sizeof(hash->held));
    hash->n += n;
    while (n > 0) {
        if (held == 0 && n >= sizeof(hash->held)) {
            stripe(hash, s);
            s += sizeof(hash->held);
            n -= sizeof(hash->held);
            continue;
        }
        size_t take = sizeof(hash->held) - held < n ? sizeof(hash->held) - held : n;
        memcpy(hash->held + held, s, take);
        s += take;
        n -= take;
        held += take;
        if (held == sizeof(hash->held)) {
            stripe(hash, hash->held);
            held = 0;
        }
    }
}

uint64_t pm_hash_value(const pm_hash *hash)
{
    static const int turns[] = {1, 7, 12, 18};
    const unsigned char *s = hash->held, *end = s + hash->n % sizeof(hash->held);
    uint64_t h = P5;
    if (hash->n >= sizeof(hash->held)) {
        h = 0;
        for (int i = 0; i < 4; i++)
            h += rotate(hash->sum[i], turns[i]);
        for (int i = 0; i < 4; i++)
            h = (h ^ round_of(0, hash->sum[i])) * P1 + P4;
    }
    h += hash->n;
    for (; end - s >= 8; s += 8)
        h = rotate(h ^ round_of(0, number(s, 8)), 27) * P1 + P4;
    for (; end - s >= 4; s += 4)
        h = rotate(h ^ number(s, 4) * P1, 23) * P2 + P3;
    for (; s < end; s++)
        h = rotate(h ^ *s * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}
