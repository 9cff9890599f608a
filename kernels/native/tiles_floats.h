/* Products of tiles in AVX-512's float32: rows lie in float32, and columns are widened in registers. Included by tiles.h. */
#pragma once

#define FLUSH_BITS 0x8040 /* of MXCSR: what has fewer digits than others is 0, read or written */

/* Make this thread ready for `multiply_tiles`, which flushes as the processors' own products of bfloat16 do. Returns what
 * `end_tiles` wants. */
INLINE unsigned begin_tiles(void) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | FLUSH_BITS);
    return before;
}

INLINE void end_tiles(unsigned before) {
    _mm_setcsr(before);
}

/* c[j] = rows b_j for `count` rows of a row tile, whose sums are in registers. */
INLINE void multiply_rows(const float *rows, const int count, const bf16 *b, ptrdiff_t b_step, const int num_b,
                          int64_t num_k, float *c, Ahead *ahead) {
    const __m512i second = _mm512_set1_epi32((int)0xffff0000);
    __m512 sums[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
#pragma GCC unroll 2
        for (int j = 0; j < num_b; j++)
            sums[r][j] = _mm512_setzero_ps();
    Ahead asked = *ahead;
    for (int64_t k = 0; k < num_k; k++)
        for (int pair = 0; pair < TILE_DEPTH / 2; pair++) {
            __m512 columns[2][2];
            ask_ahead(&asked);
#pragma GCC unroll 2
            for (int j = 0; j < num_b; j++) {
                const __m512i both = _mm512_loadu_si512(b + j * b_step + k * TILE_SIZE + pair * 32);
                columns[0][j] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
                columns[1][j] = _mm512_castsi512_ps(_mm512_and_si512(both, second));
            }
#pragma GCC unroll 2
            for (int e = 0; e < 2; e++)
#pragma GCC unroll 16
                for (int r = 0; r < count; r++) {
                    const __m512 x = _mm512_set1_ps(rows[k * TILE_SIZE + r * TILE_DEPTH + 2 * pair + e]);
#pragma GCC unroll 2
                    for (int j = 0; j < num_b; j++)
                        sums[r][j] = _mm512_fmadd_ps(columns[e][j], x, sums[r][j]);
                }
        }
    *ahead = asked;
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
#pragma GCC unroll 2
        for (int j = 0; j < num_b; j++)
            _mm512_storeu_ps(c + j * 256 + r * 16, sums[r][j]);
}

PRODUCT_BY_ROWS(multiply_tiles, multiply_rows, bf16, 1)

INLINE ptrdiff_t step_of_tiles(int64_t bytes, int64_t num_rows) {
    return step_of_vectors(bytes, num_rows);
}
