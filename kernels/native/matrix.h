/* Products with a matrix of weights, whose column tiles lie ready, and what is done with each sum at once. */
#pragma once

#include <stdlib.h>

#include "tiles.h"
#include "widening.h"

int omp_get_num_threads(void); /* a compiler may have OpenMP without its header */

#define ROWS_BYTES (512 << 10) /* of rows that a unit of work has: they stay in a core's cache */
#define PAIR_BLOCK 8           /* pairs of column tiles that it has at most */
#define UNITS_A_THREAD 4

/* y = x tiles + bias, padded with zeros to whole tiles. Elements of int8 are to be multiplied with their column's scale.
 */
typedef struct {
    const void *tiles;   /* column tiles of [depth, num_columns] */
    const float *scales; /* [num_columns] of int8, or null: bfloat16 */
    const bf16 *bias;    /* [num_columns], or null */
    int64_t num_columns, depth;
} Matrix;

enum Finish {
    AS_BF16,  /* y[row][column] = sum */
    AS_FLOAT, /* the same in float32 */
    ADDED,    /* y[row][column] += sum */
    GATED,    /* silu(sum of an even column tile) * sum of the next, as row tiles */
};

INLINE int64_t tiles_of(int64_t elements, int64_t size) {
    return (elements + size - 1) / size;
}

/* Where an element of row tiles lies that are `depth` elements deep, a multiple of 32. */
INLINE bf16 *in_row_tiles(bf16 *tiles, int64_t depth, int64_t row, int64_t element) {
    return tiles + (row / TILE_ROWS * (depth / TILE_DEPTH) + element / TILE_DEPTH) * TILE_SIZE +
           row % TILE_ROWS * TILE_DEPTH + element % TILE_DEPTH;
}

INLINE __m512 silu_ps(__m512 x) {
    const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_div_ps(x, below);
}

/* Put one row's sums of two column tiles, the first of them at `column`, where they go. `width` is that of a row of y. */
INLINE void finish_row(const Matrix *m, const enum Finish finish, int64_t row, int64_t column, const int num_b,
                       const float *sums, void *y, int64_t width) {
    __m512 found[2];
    for (int j = 0; j < num_b; j++) {
        const int64_t left = m->num_columns - column - j * TILE_ROWS;
        const __mmask16 mask = left >= LANES ? 0xffff : (__mmask16)((1 << left) - 1);
        found[j] = _mm512_loadu_ps(sums + j * 256);
        if (m->scales)
            found[j] = _mm512_mul_ps(found[j], _mm512_maskz_loadu_ps(mask, m->scales + column + j * TILE_ROWS));
        if (m->bias)
            found[j] = _mm512_add_ps(found[j], load_some_bf16(m->bias + column + j * TILE_ROWS, mask));
        if (finish == AS_FLOAT)
            _mm512_mask_storeu_ps((float *)y + row * width + column + j * LANES, mask, found[j]);
        if (finish == AS_BF16 || finish == ADDED) {
            bf16 *to = (bf16 *)y + row * width + column + j * LANES;
            if (finish == ADDED)
                found[j] = _mm512_add_ps(found[j], load_some_bf16(to, mask));
            store_some_bf16(to, mask, found[j]);
        }
    }
    if (finish == GATED && num_b == 2)
        store_bf16(in_row_tiles(y, width, row, column / 2), _mm512_mul_ps(silu_ps(found[0]), found[1]));
}

/* The column tiles from `column` on, `num_b` of them. `room` is for those of int8. */
INLINE const bf16 *columns_at(const Matrix *m, int64_t column, int num_b, bf16 *room) {
    const int64_t num_k = tiles_of(m->depth, TILE_DEPTH), first = column / TILE_ROWS * num_k * TILE_SIZE;
    if (!m->scales)
        return (const bf16 *)m->tiles + first;
    widen((const uint8_t *)m->tiles + first, num_b * num_k * TILE_SIZE, INT8, NULL, room);
    return room;
}

/* Rows from `first_row` on, `num_a` row tiles of them, with `num_b` column tiles: those of `column` on. */
INLINE void multiply_pair(const Matrix *m, const enum Finish finish, const bf16 *rows, int64_t first_row, const int num_a,
                          int64_t num_rows, const bf16 *columns, int64_t column, const int num_b, void *y,
                          int64_t width) {
    const int64_t num_k = tiles_of(m->depth, TILE_DEPTH);
    const int64_t left = num_rows - first_row;
    const int count = left < num_a * TILE_ROWS ? (int)left : num_a * TILE_ROWS;
    float sums[4 * 256] __attribute__((aligned(64)));
    multiply_tiles(rows + first_row / TILE_ROWS * num_k * TILE_SIZE, num_k * TILE_SIZE, num_a, count,
                   columns, num_k * TILE_SIZE, num_b, num_k, sums);
    for (int r = 0; r < count; r++)
        finish_row(m, finish, first_row + r, column, num_b,
                   sums + r / TILE_ROWS * num_b * 256 + r % TILE_ROWS * LANES, y, width);
}

/* Multiply row tiles, of num_rows rows, with a matrix. To be called by all threads of a team that has begun tiles; they
 * leave it together. An even number of column tiles is needed for GATED. */
INLINE void multiply_matrix(const Matrix *m, const enum Finish finish, const bf16 *rows, int64_t num_rows, void *y,
                            int64_t width) {
    const int64_t num_pairs = tiles_of(m->num_columns, 2 * TILE_ROWS);
    const int64_t tile_bytes = tiles_of(m->depth, TILE_DEPTH) * TILE_SIZE * (int64_t)sizeof(bf16);
    const int64_t row_pairs = ROWS_BYTES / (2 * tile_bytes), row_block = (row_pairs ? row_pairs : 1) * 2 * TILE_ROWS;
    const int64_t row_blocks = tiles_of(num_rows, row_block);
    int64_t pair_block = num_pairs / (omp_get_num_threads() * UNITS_A_THREAD);
    pair_block = pair_block < 1 ? 1 : pair_block > PAIR_BLOCK ? PAIR_BLOCK : pair_block;
    const int64_t num_units = tiles_of(num_pairs, pair_block) * row_blocks;
    const size_t room_bytes = (size_t)tiles_of(m->depth, TILE_DEPTH) * 2 * TILE_SIZE * sizeof(bf16);
    bf16 *room = m->scales ? aligned_alloc(64, room_bytes) : NULL;
    if (m->scales && !room)
        abort(); /* a thread has no way to say that there is no memory */
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < num_units; unit++) {
        const int64_t first_pair = unit / row_blocks * pair_block, first_row = unit % row_blocks * row_block;
        const int64_t stop_pair = first_pair + pair_block < num_pairs ? first_pair + pair_block : num_pairs;
        const int64_t stop_row = first_row + row_block < num_rows ? first_row + row_block : num_rows;
        for (int64_t pair = first_pair; pair < stop_pair; pair++) {
            const int64_t column = pair * 2 * TILE_ROWS;
            const int num_b = m->num_columns - column > TILE_ROWS ? 2 : 1;
            const bf16 *columns = columns_at(m, column, num_b, room);
            for (int64_t row = first_row; row < stop_row; row += 2 * TILE_ROWS) {
                const int num_a = stop_row - row > TILE_ROWS ? 2 : 1;
                if (num_a == 2 && num_b == 2)
                    multiply_pair(m, finish, rows, row, 2, num_rows, columns, column, 2, y, width);
                else if (num_b == 2)
                    multiply_pair(m, finish, rows, row, 1, num_rows, columns, column, 2, y, width);
                else if (num_a == 2)
                    multiply_pair(m, finish, rows, row, 2, num_rows, columns, column, 1, y, width);
                else
                    multiply_pair(m, finish, rows, row, 1, num_rows, columns, column, 1, y, width);
            }
        }
    }
    free(room);
}
