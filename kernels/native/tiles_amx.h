/* Products of tiles in the processor's matrix tiles (AMX). Included by tiles.h. */
#pragma once

#ifndef __AMX_BF16__
#error "the compiler does not know of the processor's matrix tiles"
#endif

/* Some compilers do not know that tiles read and write memory, nor which: without this, what was written there might be
 * written later, or, where nothing else reads it, never. */
#define MEMORY_OF_TILES(pointer) __asm__ volatile("" ::"r"(pointer) : "memory")

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Make this thread ready for `multiply_tiles`. Returns what `end_tiles` wants. */
INLINE unsigned begin_tiles(void) {
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
    return 0;
}

INLINE void end_tiles(unsigned before) {
    (void)before;
    _tile_release();
}

/* By how many bytes to go on with each tile's depth, where `bytes` a depth are to come while so many rows are multiplied. */
INLINE ptrdiff_t step_of_tiles(int64_t bytes, int64_t num_rows) {
    return bytes / tiles_of(num_rows, 2 * TILE_ROWS);
}

INLINE void multiply_tiles(const bf16 *a, ptrdiff_t a_step, const int num_a, int num_rows, const bf16 *b,
                           ptrdiff_t b_step, const int num_b, int64_t num_k, float *c, Ahead *ahead) {
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
    for (int64_t k = 0; k < num_k; k++, a += TILE_SIZE, b += TILE_SIZE, ahead->next += ahead->step) {
        for (ptrdiff_t i = 0; i < ahead->step; i += LINE)
            _mm_prefetch(ahead->next + i, _MM_HINT_T1);
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