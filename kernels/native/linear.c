/* A linear layer of any model, and what comes before anything else. */

#include "matrix.h"

#ifdef PRODUCTS_IN_TILES

#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_PERMISSION 0x1023 /* ARCH_REQ_XCOMP_PERM of Linux's arch_prctl */
#define TILE_DATA 18              /* the state of the tiles' registers */

/* Linux gives the tiles' registers to processes that ask. Returns whether this one has them. */
int pagemill_prepare(void) {
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#else

int pagemill_prepare(void) {
    return 1;
}

#endif

/* Up to so many rows are multiplied faster with int8 as integers. With more, products of bfloat16 are, and int8 is widened. */
#ifdef PRODUCTS_IN_FLOATS
const int64_t pagemill_most_integer_rows = INT64_MAX;
#else
const int64_t pagemill_most_integer_rows = 8;
#endif

/* y = x m, x: [num_rows, depth]; y: [num_rows, num_columns], in float32 or bfloat16. row_tiles has room for x as row
 * tiles. */
void pagemill_linear(const bf16 *x, const Matrix *m, void *y, row_element *row_tiles, int64_t num_rows, int64_t is_float) {
    const int64_t deep = tiles_of(m->depth, TILE_DEPTH) * TILE_DEPTH;
    ROOM_FOR_SHARES(shares);
#pragma omp parallel
    {
        Team team = join_team(shares);
        const unsigned before = begin_tiles();
#pragma omp for schedule(static)
        for (int64_t row = 0; row < num_rows; row++)
            for (int64_t i = 0; i < deep; i += TILE_DEPTH) {
                const int64_t left = m->depth - i;
                const __mmask32 mask = left >= TILE_DEPTH ? 0xffffffff : (1u << left) - 1;
                copy_row(in_row_tiles(row_tiles, deep, row, i), x + row * m->depth + i, mask);
            }
        if (is_float)
            multiply_matrix(&team, m, AS_FLOAT, row_tiles, num_rows, y, m->num_columns);
        else
            multiply_matrix(&team, m, AS_BF16, row_tiles, num_rows, y, m->num_columns);
        end_tiles(before);
    }
}
