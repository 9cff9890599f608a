/* Products with a matrix of weights, whose column tiles lie ready, and what is done with each sum at once. */
#pragma once

#include <stdlib.h>

#include "integers.h"
#include "team.h"
#include "widening.h"

#define ROWS_BYTES (512 << 10) /* of rows that a unit of work has at most: they stay in a core's cache */
#define OWN_ROWS 128           /* with so many for each thread, it has rows of its own; with fewer, columns */

/* y = x tiles + bias, padded with zeros to whole tiles. Elements of int8 are to be multiplied with their column's scale.
 */
typedef struct {
    const void *tiles;   /* column tiles of [depth, num_columns] */
    const float *scales; /* [num_columns] of int8, or null: bfloat16 */
    const bf16 *bias;    /* [num_columns], or null */
    int64_t num_columns, depth;
    int64_t most_integer_rows; /* up to so many rows are multiplied with int8 as integers; with more, int8 is widened */
} Matrix;

enum Finish {
    AS_BF16,  /* y[row][column] = sum */
    AS_FLOAT, /* the same in float32 */
    ADDED,    /* y[row][column] += sum */
    GATED,    /* silu(sum of an even column tile) * sum of the next, as row tiles */
};

INLINE __m512 silu_ps(__m512 x) {
    const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    return _mm512_mul_ps(x, reciprocal_ps(below));
}

/* Put one row's sums of two column tiles, the first of them at `column`, where they go. With int8, they are yet to be
 * multiplied with row_scale. `width` is that of a row of y. */
INLINE void finish_row(const Matrix *m, const enum Finish finish, int64_t row, float row_scale, int64_t column,
                       const int num_b, const float *sums, void *y, int64_t width) {
    __m512 found[2];
    for (int j = 0; j < num_b; j++) {
        const int64_t left = m->num_columns - column - j * TILE_ROWS;
        const __mmask16 mask = left >= LANES ? 0xffff : (__mmask16)((1 << left) - 1);
        found[j] = _mm512_loadu_ps(sums + j * 256);
        if (m->scales) {
            const __m512 scales = _mm512_maskz_loadu_ps(mask, m->scales + column + j * TILE_ROWS);
            /* The sum between them: the scales' own product may be smaller than any number. */
            found[j] = _mm512_mul_ps(_mm512_mul_ps(found[j], scales), _mm512_set1_ps(row_scale));
        }
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
        store_row(in_row_tiles(y, width, row, column / 2), _mm512_mul_ps(silu_ps(found[0]), found[1]));
}

/* Where the scales of rows are that have become integers: behind their tiles. */
INLINE float *row_scales_of(row_element *rows, int64_t num_rows, int64_t depth) {
    return (float *)(rows + tiles_of(num_rows, TILE_ROWS) * tiles_of(depth, TILE_DEPTH) * TILE_SIZE);
}

/* The column tiles from `column` on, `num_b` of them, as they are to be multiplied. `room`, if any, is for widened ones. */
INLINE const void *columns_at(const Matrix *m, int64_t column, int num_b, bf16 *room) {
    const int64_t num_k = tiles_of(m->depth, TILE_DEPTH), first = column / TILE_ROWS * num_k * TILE_SIZE;
    if (!m->scales)
        return (const bf16 *)m->tiles + first;
    const uint8_t *columns = (const uint8_t *)m->tiles + first;
    if (!room)
        return columns;
    widen(columns, num_b * num_k * TILE_SIZE, INT8, NULL, room);
    return room;
}

/* Rows from `first_row` on, `num_a` row tiles of them, with `num_b` column tiles: those of `column` on. row_scales is null
 * where rows are no integers. */
INLINE void multiply_pair(const Matrix *m, const enum Finish finish, const row_element *rows, const float *row_scales,
                          int64_t first_row, const int num_a, int64_t num_rows, const void *columns, int64_t column,
                          const int num_b, void *y, int64_t width, Ahead *ahead) {
    const int64_t num_k = tiles_of(m->depth, TILE_DEPTH), step = num_k * TILE_SIZE;
    const int64_t left = num_rows - first_row;
    const int count = left < num_a * TILE_ROWS ? (int)left : num_a * TILE_ROWS;
    const row_element *first = rows + first_row / TILE_ROWS * step;
    float sums[4 * 256] __attribute__((aligned(64)));
    if (row_scales)
        multiply_integers(first, step, num_a, count, columns, step, num_b, num_k, sums, ahead);
    else
        multiply_tiles(first, step, num_a, count, columns, step, num_b, num_k, sums, ahead);
    for (int r = 0; r < count; r++)
        finish_row(m, finish, first_row + r, row_scales ? row_scales[first_row + r] : 1.0f, column, num_b,
                   sums + r / TILE_ROWS * num_b * 256 + r % TILE_ROWS * LANES, y, width);
}

/* The columns that a thread is likely to multiply after those at hand, to be asked for evenly while these are multiplied
 * with num_rows rows, by integers or not. */
INLINE Ahead columns_ahead(const Matrix *m, const Units *units, int64_t num_pairs, int64_t num_rows, int by_integers) {
    const int64_t unit = likely_unit(units), num_k = tiles_of(m->depth, TILE_DEPTH);
    const int64_t bytes = 2 * TILE_SIZE * (int64_t)(m->scales ? sizeof(int8_t) : sizeof(bf16)); /* of a tile's depth */
    if (unit == units->num_units)
        return nothing_ahead(m->tiles);
    return (Ahead){(const char *)m->tiles + unit % num_pairs * num_k * bytes,
                   by_integers ? step_of_vectors(bytes, num_rows) : step_of_tiles(bytes, num_rows)};
}

/* How many rows a unit of work has, of num_rows rows whose tiles have tile_bytes: whole pairs of row tiles. */
INLINE int64_t rows_of_unit(int64_t num_rows, int64_t tile_bytes, int64_t num_threads) {
    const int64_t num_pairs = tiles_of(num_rows, 2 * TILE_ROWS), most = ROWS_BYTES / (2 * tile_bytes);
    const int64_t at_once = num_rows >= OWN_ROWS * num_threads ? num_threads : 1;
    const int64_t num_blocks = tiles_of(num_pairs, at_once * (most ? most : 1)) * at_once;
    return num_blocks ? tiles_of(num_pairs, num_blocks) * 2 * TILE_ROWS : 2 * TILE_ROWS;
}

/* Multiply row tiles, of num_rows rows, with a matrix. With int8 they may be integers afterwards. To be called by all threads
 * of a team that has begun tiles; they leave it together. An even number of column tiles is needed for GATED. */
INLINE void multiply_matrix(Team *team, const Matrix *m, const enum Finish finish, row_element *rows, int64_t num_rows,
                            void *y, int64_t width) {
    const int64_t num_k = tiles_of(m->depth, TILE_DEPTH), num_pairs = tiles_of(m->num_columns, 2 * TILE_ROWS);
    const int64_t tile_bytes = num_k * TILE_SIZE * (int64_t)sizeof(row_element);
    const int64_t row_block = rows_of_unit(num_rows, tile_bytes, team->num_threads);
    const int64_t num_units = tiles_of(num_rows, row_block) * num_pairs;
    const int by_integers = m->scales && num_rows <= m->most_integer_rows;
    float *const row_scales = by_integers ? row_scales_of(rows, num_rows, m->depth) : NULL;
    if (by_integers) {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < num_rows; row++)
            row_scales[row] = to_integers(rows, num_k * TILE_DEPTH, row);
    }
    const int widens = m->scales && !by_integers;
    bf16 *room = widens ? aligned_alloc(64, (size_t)num_k * 2 * TILE_SIZE * sizeof(bf16)) : NULL;
    if (widens && !room)
        abort(); /* a thread has no way to say that there is no memory */
    Units units = share_units(team, num_units);
    for (int64_t unit = take_unit(&units); unit < num_units; unit = take_unit(&units)) {
        const int64_t first_row = unit / num_pairs * row_block, column = unit % num_pairs * 2 * TILE_ROWS;
        const int64_t stop_row = first_row + row_block < num_rows ? first_row + row_block : num_rows;
        const int num_b = m->num_columns - column > TILE_ROWS ? 2 : 1;
        const void *columns = columns_at(m, column, num_b, room);
        Ahead ahead = columns_ahead(m, &units, num_pairs, stop_row - first_row, by_integers);
        for (int64_t row = first_row; row < stop_row; row += 2 * TILE_ROWS) {
            const int num_a = stop_row - row > TILE_ROWS ? 2 : 1;
            if (num_a == 2 && num_b == 2)
                multiply_pair(m, finish, rows, row_scales, row, 2, num_rows, columns, column, 2, y, width, &ahead);
            else if (num_b == 2)
                multiply_pair(m, finish, rows, row_scales, row, 1, num_rows, columns, column, 2, y, width, &ahead);
            else if (num_a == 2)
                multiply_pair(m, finish, rows, row_scales, row, 2, num_rows, columns, column, 1, y, width, &ahead);
            else
                multiply_pair(m, finish, rows, row_scales, row, 1, num_rows, columns, column, 1, y, width, &ahead);
        }
    }
    free(room);
    meet_team(team);
}
