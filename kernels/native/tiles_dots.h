/* Products of tiles in AVX-512 dot products of bfloat16. Included by tiles.h. */
#pragma once

#define AHEAD_BYTES 4096 /* a single row, which takes columns as fast as they come, asks for them so long before */

/* Make this thread ready for `multiply_tiles`. Returns what `end_tiles` wants. */
INLINE unsigned begin_tiles(void) {
    return 0;
}

INLINE void end_tiles(unsigned before) {
    (void)before;
}

INLINE __m512bh pair_at(const bf16 *from) {
    uint32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32((int)pair);
}

/* c[j] = rows b_j for `count` rows of a row tile, whose sums are in registers. */
INLINE void multiply_rows(const bf16 *rows, const int count, const bf16 *b, ptrdiff_t b_step, const int num_b,
                          int64_t num_k, float *c, Ahead *ahead) {
    __m512 sums[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
#pragma GCC unroll 2
        for (int j = 0; j < num_b; j++)
            sums[r][j] = _mm512_setzero_ps();
    Ahead asked = *ahead;
    for (int64_t k = 0; k < num_k; k++)
        for (int pair = 0; pair < TILE_DEPTH / 2; pair++) {
            __m512bh columns[2];
            if (count > 1)
                ask_ahead(&asked);
#pragma GCC unroll 2
            for (int j = 0; j < num_b; j++) {
                const bf16 *from = b + j * b_step + k * TILE_SIZE + pair * 32;
                columns[j] = (__m512bh)_mm512_loadu_si512(from);
                if (count == 1)
                    _mm_prefetch((const char *)from + AHEAD_BYTES, _MM_HINT_T1);
            }
#pragma GCC unroll 16
            for (int r = 0; r < count; r++) {
                const __m512bh x = pair_at(rows + k * TILE_SIZE + r * TILE_DEPTH + 2 * pair);
#pragma GCC unroll 2
                for (int j = 0; j < num_b; j++)
                    sums[r][j] = _mm512_dpbf16_ps(sums[r][j], columns[j], x);
            }
        }
    *ahead = asked;
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
#pragma GCC unroll 2
        for (int j = 0; j < num_b; j++)
            _mm512_storeu_ps(c + j * 256 + r * 16, sums[r][j]);
}

PRODUCT_BY_ROWS(multiply_tiles, multiply_rows, bf16, 0)

INLINE ptrdiff_t step_of_tiles(int64_t bytes, int64_t num_rows) {
    return step_of_vectors(bytes, num_rows);
}
