/* Products of rows in int16, a scale each, with columns in int8: exact but for the rounding of the rows, whose error is that
 * of 1/65534 of a row's greatest number. Sixteen bits by eight are multiplied twice as fast as float32, and nothing has to
 * be widened to bfloat16.
 *
 * The rows lie where they lay as row tiles, 32 numbers of two bytes where 32 elements began. */
#pragma once

#include <math.h>

#include "tiles.h"

#define GREATEST_INTEGER 32767.0f
#define EXACT_TILES 16 /* tiles of depth whose products add up in 32 bits: 512 * 32768 * 127 < 2**31 */

/* Turn a row of row tiles, `depth` elements deep, into integers. Returns what they are to be multiplied with; NaN for a row
 * that has one. */
INLINE float to_integers(row_element *tiles, int64_t depth, int64_t row) {
    __m512 most = _mm512_setzero_ps();
    __mmask16 is_nan = 0;
    for (int64_t i = 0; i < depth; i += LANES) {
        const __m512 v = load_row(in_row_tiles(tiles, depth, row, i));
        is_nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
    }
    /* At least the smallest that has all its digits: of that, and of zeros, there is an inverse. */
    const float scale = fmaxf(_mm512_reduce_max_ps(most) / GREATEST_INTEGER, 1.17549435e-38f);
    const __m512 factor = _mm512_set1_ps(1.0f / scale);
    for (int64_t i = 0; i < depth; i += LANES) {
        const __m512 v = _mm512_mul_ps(load_row(in_row_tiles(tiles, depth, row, i)), factor);
        int16_t *to = (int16_t *)in_row_tiles(tiles, depth, row, i / TILE_DEPTH * TILE_DEPTH) + i % TILE_DEPTH;
        _mm256_storeu_si256((__m256i *)to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)));
    }
    return is_nan ? NAN : scale;
}

INLINE __m512i add_products(__m512i sum, __m512i x, __m512i y) {
#ifdef __AVX512VNNI__
    return _mm512_dpwssd_epi32(sum, x, y);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(x, y));
#endif
}

/* c[j] += rows b_j for `count` rows of a row tile and at most EXACT_TILES tiles of depth. */
INLINE void multiply_integer_rows(const row_element *rows, const int count, const int8_t *b, ptrdiff_t b_step,
                                  const int num_b, int64_t num_k, float *c, Ahead *ahead) {
    __m512i sums[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
#pragma GCC unroll 2
        for (int j = 0; j < num_b; j++)
            sums[r][j] = _mm512_setzero_si512();
    Ahead asked = *ahead;
    for (int64_t k = 0; k < num_k; k++)
        for (int pair = 0; pair < TILE_DEPTH / 2; pair++) {
            __m512i columns[2];
            ask_ahead(&asked);
#pragma GCC unroll 2
            for (int j = 0; j < num_b; j++)
                columns[j] = _mm512_cvtepi8_epi16(
                    _mm256_loadu_si256((const __m256i *)(b + j * b_step + k * TILE_SIZE + pair * 32)));
#pragma GCC unroll 16
            for (int r = 0; r < count; r++) {
                int32_t both;
                memcpy(&both, (const int16_t *)(rows + k * TILE_SIZE + r * TILE_DEPTH) + 2 * pair, sizeof both);
                const __m512i x = _mm512_set1_epi32(both);
#pragma GCC unroll 2
                for (int j = 0; j < num_b; j++)
                    sums[r][j] = add_products(sums[r][j], columns[j], x);
            }
        }
    *ahead = asked;
#pragma GCC unroll 16
    for (int r = 0; r < count; r++)
#pragma GCC unroll 2
        for (int j = 0; j < num_b; j++) {
            float *to = c + j * 256 + r * 16;
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), _mm512_cvtepi32_ps(sums[r][j])));
        }
}

PRODUCT_BY_ROWS(add_integer_products, multiply_integer_rows, int8_t, 0)

/* What `multiply_tiles` does, scales left out. */
INLINE void multiply_integers(const row_element *a, ptrdiff_t a_step, int num_a, int num_rows, const int8_t *b,
                              ptrdiff_t b_step, int num_b, int64_t num_k, float *c, Ahead *ahead) {
    memset(c, 0, (size_t)(num_a * num_b) * 256 * sizeof *c);
    for (int64_t k = 0; k < num_k; k += EXACT_TILES)
        add_integer_products(a + k * TILE_SIZE, a_step, num_a, num_rows, b + k * TILE_SIZE, b_step, num_b,
                             num_k - k < EXACT_TILES ? num_k - k : EXACT_TILES, c, ahead);
}
