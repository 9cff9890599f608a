/* How vectors multiply a few row tiles with one column tile or two: as many rows at a time as have their sums in registers,
 * so that each column is loaded, and widened, once for all of them. */
#pragma once

/* Define `name`(a, a_step, num_a, num_rows, b, b_step, num_b, num_k, c, ahead), which does what `multiply_tiles` does, by
 * `multiply_rows`(rows, count, b, b_step, num_b, num_k, c, ahead) for counts and numbers of columns that the compiler
 * knows. It may compute more rows of a tile than there are. A product that `widens` has sixteen rows of one column tile at
 * a time, another eight of two, which needs fewer loads. */
#define PRODUCT_BY_ROWS(name, multiply_rows, column_type, widens)                                                       \
    static __attribute__((noinline)) void name(const row_element *a, ptrdiff_t a_step, int num_a, int num_rows,         \
                                               const column_type *b, ptrdiff_t b_step, int num_b, int64_t num_k,        \
                                               float *c, Ahead *ahead) {                                                \
        for (int i = 0; i < num_a; i++, a += a_step, c += num_b * 256) {                                                \
            const int left = num_rows - i * TILE_ROWS;                                                                  \
            if (left > 12 && (widens || num_b == 1))                                                                    \
                for (int j = 0; j < num_b; j++)                                                                         \
                    multiply_rows(a, 16, b + j * b_step, b_step, 1, num_k, c + j * 256, ahead);                         \
            else if (num_b == 1)                                                                                        \
                for (int row = 0; row < left; row += 4)                                                                 \
                    multiply_rows(a + row * TILE_DEPTH, 4, b, b_step, 1, num_k, c + row * 16, ahead);                   \
            else if (left > 12)                                                                                         \
                for (int row = 0; row < TILE_ROWS; row += 8)                                                            \
                    multiply_rows(a + row * TILE_DEPTH, 8, b, b_step, 2, num_k, c + row * 16, ahead);                   \
            else if (left > 8)                                                                                          \
                multiply_rows(a, 12, b, b_step, 2, num_k, c, ahead);                                                    \
            else if (left > 4)                                                                                          \
                multiply_rows(a, 8, b, b_step, 2, num_k, c, ahead);                                                     \
            else if (left > 1)                                                                                          \
                multiply_rows(a, 4, b, b_step, 2, num_k, c, ahead);                                                     \
            else                                                                                                        \
                multiply_rows(a, 1, b, b_step, 2, num_k, c, ahead);                                                     \
        }                                                                                                               \
    }

/* How often two column tiles pass by while so many rows are multiplied with them; one at a time counts half. */
INLINE int64_t passes_of(int64_t num_rows) {
    const int64_t left = num_rows % TILE_ROWS;
    return num_rows / TILE_ROWS * 2 + (left > 12 ? 2 : left > 0);
}

/* By how many bytes to go on with each pair of depth, where `bytes` a tile's depth are to come while so many rows are
 * multiplied. */
INLINE ptrdiff_t step_of_vectors(int64_t bytes, int64_t num_rows) {
    return bytes / (passes_of(num_rows) * TILE_DEPTH / 2);
}
