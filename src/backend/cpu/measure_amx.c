/* The loops of measure.c for AMX: tdpbssd (8-bit integers: two passes for 16-bit ones), and those of AVX-512. */
#if defined(__x86_64__)

#include "backend/cpu/cpu.h"

#include <immintrin.h>
#include <string.h>

enum { SIDE = 16, TILE_BYTES = 1024, CHAINS = 4 /* independent, so that none waits for another */ };

static uint64_t integers_amx(int rounds)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64}, .rows = {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};
    _Alignas(64) int8_t factor[TILE_BYTES];
    _Alignas(64) uint64_t sum[TILE_BYTES / sizeof(uint64_t)];
    uint64_t all = 0;
    memset(factor, rounds | 1, sizeof(factor));
    __asm__ volatile("" ::: "memory"); /* compilers do not know that loading a tile reads memory */
    _tile_loadconfig(&config);
    _tile_loadd(4, factor, 64);
    _tile_loadd(5, factor, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < rounds; i++) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_stored(3, sum, 64);
    for (size_t i = 0; i < sizeof(sum) / sizeof(*sum); i++)
        all ^= sum[i];
    _tile_release();
    return all;
}

enum { PRODUCTS = SIDE * SIDE * 64 * CHAINS };

const pm_measure_kernels pm_measure_amx = {pm_measure_read_avx512,
                                           integers_amx,
                                           pm_measure_floats_avx512,
                                           {PRODUCTS /* in two passes */, 2 * PRODUCTS},
                                           PM_AVX512_FLOAT_OPS};

#endif
