/* Products of bfloat16 matrices in tiles of 16 rows, summed in float32: with AMX where the processor has it, with AVX-512
 * dot products elsewhere. Both read the same layouts:
 *
 *   row tiles     of [rows, k]:     [rows / 16][k / 32][16 rows][32 elements]
 *   column tiles  of [k, columns]:  [columns / 16][k / 32][16 pairs][16 columns][2 elements of a pair]
 *
 * A tile is 512 elements. An element of the product is summed in the order of k, whatever else is multiplied beside it:
 * its bits depend on its row and its column only. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "vectors.h"

#define TILE_ROWS 16
#define TILE_DEPTH 32
#define TILE_SIZE (TILE_ROWS * TILE_DEPTH)

#ifdef __AMX_BF16__

/* Some compilers do not know that tiles read and write memory, nor which: without this, what was written there might be
 * written later, or, where nothing else reads it, never. */
#define MEMORY_OF_TILES(pointer) __asm__ volatile("" ::"r"(pointer) : "memory")

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Make this thread ready for `multiply_tiles`. */
INLINE void begin_tiles(void) {
    TileConfig config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = TILE_ROWS;
    }
    MEMORY_OF_TILES(&config);
    _tile_loadconfig(&config);
    MEMORY_OF_TILES(&config);
}

INLINE void end_tiles(void) {
    _tile_release();
}

/* c[i][j] = a_i b_j for `num_a` row tiles, a_step elements apart, and `num_b` column tiles, b_step apart; each 1 or 2.
 * Both are num_k tiles deep, and those lie one behind the other. c: [num_a][num_b][16][16]; rows from num_rows on may
 * be left as they are. */
INLINE void multiply_tiles(const bf16 *a, ptrdiff_t a_step, const int num_a, int num_rows, const bf16 *b,
                           ptrdiff_t b_step, const int num_b, int64_t num_k, float *c) {
    (void)num_rows;
    MEMORY_OF_TILES(a);
    MEMORY_OF_TILES(b);
    /* Rows pass by once for each pair of columns, which are to stay near meanwhile. */
    _tile_zero(0);
    if (num_b > 1)
        _tile_zero(1);
    if (num_a > 1)
        _tile_zero(2);
    if (num_a > 1 && num_b > 1)
        _tile_zero(3);
    for (int64_t k = 0; k < num_k; k++, a += TILE_SIZE, b += TILE_SIZE) {
        _tile_loadd(6, b, 64);
        _tile_stream_loadd(4, a, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (num_b > 1) {
            _tile_loadd(7, b + b_step, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (num_a > 1) {
            _tile_stream_loadd(5, a + a_step, 64);
            _tile_dpbf16ps(2, 5, 6);
        }
        if (num_a > 1 && num_b > 1)
            _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, 64);
    if (num_b > 1)
        _tile_stored(1, c + 256, 64);
    if (num_a > 1)
        _tile_stored(2, c + 256 * num_b, 64);
    if (num_a > 1 && num_b > 1)
        _tile_stored(3, c + 768, 64);
    MEMORY_OF_TILES(c);
}

#else

INLINE void begin_tiles(void) {
}

INLINE void end_tiles(void) {
}

INLINE __m512bh pair_at(const bf16 *from) {
    uint32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32((int)pair);
}

/* c[j] = rows b_j for `count` rows of a row tile, whose sums are in registers. */
INLINE void multiply_rows(const bf16 *rows, const int count, const bf16 *b, ptrdiff_t b_step, const int num_b,
                          int64_t num_k, float *c) {
    __m512 sums[count][2];
    for (int r = 0; r < count; r++)
        for (int j = 0; j < num_b; j++)
            sums[r][j] = _mm512_setzero_ps();
    for (int64_t k = 0; k < num_k; k++)
        for (int pair = 0; pair < TILE_DEPTH / 2; pair++) {
            __m512bh columns[2];
            for (int j = 0; j < num_b; j++)
                columns[j] = (__m512bh)_mm512_loadu_si512(b + j * b_step + k * TILE_SIZE + pair * 32);
            for (int r = 0; r < count; r++) {
                const __m512bh x = pair_at(rows + k * TILE_SIZE + r * TILE_DEPTH + 2 * pair);
                for (int j = 0; j < num_b; j++)
                    sums[r][j] = _mm512_dpbf16_ps(sums[r][j], columns[j], x);
            }
        }
    for (int r = 0; r < count; r++)
        for (int j = 0; j < num_b; j++)
            _mm512_storeu_ps(c + j * 256 + r * 16, sums[r][j]);
}

/* c[i][j] = a_i b_j for `num_a` row tiles, a_step elements apart, and `num_b` column tiles, b_step apart; each 1 or 2.
 * Both are num_k tiles deep, and those lie one behind the other. c: [num_a][num_b][16][16]; rows from num_rows on may
 * be left as they are. */
INLINE void multiply_tiles(const bf16 *a, ptrdiff_t a_step, const int num_a, int num_rows, const bf16 *b,
                           ptrdiff_t b_step, const int num_b, int64_t num_k, float *c) {
    for (int row = 0; row < num_a * TILE_ROWS && row < num_rows;) {
        const bf16 *rows = a + row / TILE_ROWS * a_step + row % TILE_ROWS * TILE_DEPTH;
        float *to = c + row / TILE_ROWS * num_b * 256 + row % TILE_ROWS * 16;
        const int left = num_rows - row;
        if (left > 4) {
            multiply_rows(rows, 8, b, b_step, num_b, num_k, to);
            row += 8;
        } else if (left > 1) {
            multiply_rows(rows, 4, b, b_step, num_b, num_k, to);
            row += 4;
        } else {
            multiply_rows(rows, 1, b, b_step, num_b, num_k, to);
            row += 1;
        }
    }
}

#endif
