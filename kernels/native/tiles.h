/* Products of matrices in tiles of 16 rows, summed in float32. One of three files does the work:
 *
 *   tiles_amx.h     in the processor's matrix tiles
 *   tiles_dots.h    in AVX-512 dot products of bfloat16
 *   tiles_floats.h  in AVX-512 products of float32: any processor with AVX-512, and Intel's dot products of bfloat16 take
 *                   more than twice as long
 *
 * All read the same layouts:
 *
 *   row tiles     of [rows, k]:     [rows / 16][k / 32][16 rows][32 elements]
 *   column tiles  of [k, columns]:  [columns / 16][k / 32][16 pairs][16 columns][2 elements of a pair]
 *
 * Columns are bfloat16, rows what suits the product. A tile is 512 elements. Each file defines
 *
 *   multiply_tiles(a, a_step, num_a, num_rows, b, b_step, num_b, num_k, c, ahead)
 *
 * c[i][j] = a_i b_j for `num_a` row tiles, a_step elements apart, and `num_b` column tiles, b_step apart; each 1 or 2. Both
 * are num_k tiles deep, and those lie one behind the other. c: [num_a][num_b][16][16]; rows from num_rows on may be left as
 * they are. An element of the product is summed in the order of k, whatever else is multiplied beside it: its bits depend on
 * its row and its column only. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "vectors.h"

#define TILE_ROWS 16
#define TILE_DEPTH 32
#define TILE_SIZE (TILE_ROWS * TILE_DEPTH)

#ifdef PRODUCTS_IN_FLOATS
typedef float row_element;
#else
typedef bf16 row_element;
#endif

/* What is asked for, bit by bit, while something else is multiplied: columns that several rows are multiplied with are read
 * once from memory and then from the cache, and all the while memory could bring the next ones. With each pair of depth,
 * vectors ask for two lines from `next` on, and go on by `step` bytes; matrix tiles ask for all of these, with each tile. */
typedef struct {
    const char *next;
    ptrdiff_t step;
} Ahead;

INLINE Ahead nothing_ahead(const void *at_hand) {
    return (Ahead){at_hand, 0};
}

INLINE int64_t tiles_of(int64_t elements, int64_t size) {
    return (elements + size - 1) / size;
}

INLINE void ask_ahead(Ahead *ahead) {
    _mm_prefetch(ahead->next, _MM_HINT_T1);
    _mm_prefetch(ahead->next + LINE, _MM_HINT_T1);
    ahead->next += ahead->step;
}

/* Put sixteen numbers into a row of a row tile, where it has room for them. */
INLINE void store_row(row_element *to, __m512 x) {
#ifdef PRODUCTS_IN_FLOATS
    _mm512_storeu_ps(to, x);
#else
    store_bf16(to, x);
#endif
}

/* Sixteen numbers of a row. */
INLINE __m512 load_row(const row_element *from) {
#ifdef PRODUCTS_IN_FLOATS
    return _mm512_loadu_ps(from);
#else
    return load_bf16(from);
#endif
}

/* Put some of 32 numbers into a whole row of a row tile, zeros for the others. */
INLINE void copy_row(row_element *to, const bf16 *from, __mmask32 mask) {
#ifdef PRODUCTS_IN_FLOATS
    _mm512_storeu_ps(to, load_some_bf16(from, (__mmask16)mask));
    _mm512_storeu_ps(to + LANES, load_some_bf16(from + LANES, (__mmask16)(mask >> LANES)));
#else
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, from));
#endif
}

/* Where an element of row tiles lies that are `depth` elements deep, a multiple of 32. */
INLINE row_element *in_row_tiles(row_element *tiles, int64_t depth, int64_t row, int64_t element) {
    return tiles + (row / TILE_ROWS * (depth / TILE_DEPTH) + element / TILE_DEPTH) * TILE_SIZE +
           row % TILE_ROWS * TILE_DEPTH + element % TILE_DEPTH;
}

#include "row_products.h"

#if defined(PRODUCTS_IN_FLOATS)
#include "tiles_floats.h"
#elif defined(PRODUCTS_IN_TILES)
#include "tiles_amx.h"
#else
#include "tiles_dots.h"
#endif
