/* Scores of a tile of keys, the weights that they become beside those of the tiles before, and the weighted values (online
 * softmax, Milakov and Gimelshein 2018). */
#pragma once

#include "cache.h"
#include "team.h"

#define KEY_TILE 64  /* keys whose scores are in hand at a time */
#define GROUPS (KEY_TILE / GROUP)
#define MAX_ROWS 128 /* query rows, of all heads of a KV head, that a task may have */

/* How scores become weights, and the shape of the heads. */
typedef struct {
    int64_t num_heads, num_kv_heads, head_dim;
    float scale, softcap; /* 0 is no softcap */
    const float *slopes;  /* [num_heads], or null */
    const float *sinks;   /* [num_heads], or null */
} Heads;

/* What a task works with. */
typedef struct {
    row_element queries[MAX_ROWS * MAX_DIM];      /* row tiles */
    row_element weights[2][KEY_TILE * TILE_ROWS]; /* row tiles, of two times sixteen rows */
    bf16 values[KEY_TILE * MAX_DIM];              /* column tiles of [KEY_TILE, head_dim] */
    float scores[KEY_TILE / 32][2][2][256];       /* [pair of groups][row tile][group][16][16] */
    float sums[MAX_ROWS][MAX_DIM];
    float largest[MAX_ROWS], totals[MAX_ROWS], rescale[2 * TILE_ROWS];
    int64_t first_keys[MAX_ROWS], stop_keys[MAX_ROWS], positions[MAX_ROWS], parts[MAX_ROWS]; /* parts: where a row's goes */
    float slopes[MAX_ROWS];
    /* Of a cache of numbers of one byte: the tile's keys, and the scales. */
    bf16 keys[KEY_TILE * MAX_DIM];
    float key_scales[KEY_TILE], value_scales[KEY_TILE];
    Fp8Table fp8;
    const char *coming[2 * GROUPS]; /* keys and values of the next tile, which are to be asked for */
    int num_coming, num_asked;
    int64_t coming_bytes; /* of each */
} __attribute__((aligned(64))) Workspace;

INLINE __m512 softcap_ps(__m512 x, float cap) {
    /* cap tanh(x / cap), tanh(u) = 1 - 2 / (e**2u + 1) */
    const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
    const __m512 above = _mm512_add_ps(exp_ps(_mm512_mul_ps(x, _mm512_set1_ps(2.0f / cap))), one);
    return _mm512_mul_ps(_mm512_set1_ps(cap), _mm512_sub_ps(one, _mm512_div_ps(two, above)));
}

/* A row's scores of a tile lie in four runs of sixteen, GROUPS / 2 of them in each product. */
INLINE float *scores_at(Workspace *w, int row, int group) {
    return &w->scores[group / 2][row / TILE_ROWS][group % 2][row % TILE_ROWS * GROUP];
}

/* Whether scores are more than products times `scale`. */
INLINE int has_rules(const Heads *heads, int has_scales) {
    return heads->softcap != 0.0f || heads->slopes || has_scales;
}

/* Do to a row's products what makes them scores, but for a scale alone, which is left to `weigh`; and mask them. */
INLINE void rule(Workspace *w, const Heads *heads, int first_row, int row, int64_t start, int64_t run_start,
                 int has_scales) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const int64_t first = w->first_keys[first_row + row] - start, stop = w->stop_keys[first_row + row] - start;
    for (int c = 0; c < GROUPS; c++) {
        float *scores = scores_at(w, row, c);
        __m512 s = _mm512_loadu_ps(scores);
        if (has_rules(heads, has_scales))
            s = _mm512_mul_ps(s, _mm512_set1_ps(heads->scale));
        if (has_scales)
            s = _mm512_mul_ps(s, _mm512_loadu_ps(w->key_scales + c * GROUP));
        if (heads->softcap != 0.0f)
            s = softcap_ps(s, heads->softcap);
        const __m512i keys = _mm512_add_epi32(lanes, _mm512_set1_epi32(c * GROUP));
        if (heads->slopes) {
            const int64_t distance = run_start + start - w->positions[first_row + row];
            const __m512i away = _mm512_add_epi32(keys, _mm512_set1_epi32((int)distance));
            s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(away), _mm512_set1_ps(w->slopes[first_row + row]), s);
        }
        const __mmask16 seen = _mm512_cmpge_epi32_mask(keys, _mm512_set1_epi32(first < 0 ? 0 : (int)first)) &
                               _mm512_cmplt_epi32_mask(keys, _mm512_set1_epi32(stop > KEY_TILE ? KEY_TILE : (int)stop));
        _mm512_storeu_ps(scores, _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, s));
    }
}

/* Turn the scores of sixteen rows, of which `count` are in use, into weights beside what they have so far; `rescale` is
 * what that is to be multiplied by. `scale` is what scores are yet to be multiplied by. */
INLINE void weigh(Workspace *w, int first_row, int row, int count, float scale, int has_scales) {
    const __m512 nothing = _mm512_set1_ps(-INFINITY), log2_e = _mm512_set1_ps(LOG2_E);
    __m512 of_rows[TILE_ROWS]; /* the greatest scores, and then the sums of weights, by row and by sixteenth of the keys */
    for (int r = 0; r < TILE_ROWS; r++) {
        of_rows[r] = nothing;
        for (int c = 0; c < GROUPS && r < count; c++)
            of_rows[r] = _mm512_max_ps(of_rows[r], _mm512_loadu_ps(scores_at(w, row + r, c)));
    }
    const __m512 before = _mm512_loadu_ps(&w->largest[first_row + row]);
    const __m512 largest = _mm512_max_ps(before, _mm512_mul_ps(across_ps(of_rows, 0), _mm512_set1_ps(scale)));
    /* A row that has seen nothing finite yet: its weights become 0, or NaN where a score is NaN. */
    const __m512 base = _mm512_mask_mov_ps(largest, _mm512_cmpeq_ps_mask(largest, nothing), _mm512_setzero_ps());
    const __m512 rescale = _mm512_maskz_mov_ps(_mm512_cmpneq_ps_mask(before, nothing),
                                               exp2_ps(_mm512_mul_ps(_mm512_sub_ps(before, base), log2_e)));
    float bases[TILE_ROWS] __attribute__((aligned(64)));
    _mm512_store_ps(bases, _mm512_mul_ps(base, log2_e));
    for (int r = 0; r < TILE_ROWS; r++) {
        of_rows[r] = _mm512_setzero_ps();
        if (r >= count)
            continue;
        __m512 weights[GROUPS];
        for (int c = 0; c < GROUPS; c++) {
            weights[c] = exp2_ps(_mm512_fmsub_ps(_mm512_loadu_ps(scores_at(w, row + r, c)), _mm512_set1_ps(scale * LOG2_E),
                                                 _mm512_set1_ps(bases[r])));
            of_rows[r] = _mm512_add_ps(of_rows[r], weights[c]);
        }
        for (int c = 0; c < GROUPS && has_scales; c++)
            weights[c] = _mm512_mul_ps(weights[c], _mm512_loadu_ps(w->value_scales + c * GROUP));
        for (int c = 0; c < GROUPS; c++)
            store_row(w->weights[row / TILE_ROWS] + c / 2 * TILE_SIZE + r * TILE_DEPTH + c % 2 * LANES, weights[c]);
    }
    const __m512 totals = _mm512_loadu_ps(&w->totals[first_row + row]);
    _mm512_storeu_ps(&w->rescale[row], rescale);
    _mm512_storeu_ps(&w->largest[first_row + row], largest);
    _mm512_storeu_ps(&w->totals[first_row + row], _mm512_fmadd_ps(totals, rescale, across_ps(of_rows, 1)));
}

/* Ask for some of what the next tile reads. Blocks are too short for the processor to foresee what follows, and a whole tile
 * asked for at once is more than it can wait for: it is asked for bit by bit, while this one is multiplied. */
INLINE void ask(Workspace *w, int count) {
    for (; count > 0 && w->num_asked < w->num_coming; count--, w->num_asked++) {
        const char *from = w->coming[w->num_asked];
        for (int64_t i = 0; i < w->coming_bytes; i += LINE)
            _mm_prefetch(from + i, _MM_HINT_T1);
    }
}

/* One tile of keys for `num_a` row tiles of queries from `first_row` on, `count` rows. `is_plain`: its rows see all of
 * the tile, and `rule` has nothing to do. */
INLINE void attend_tile(Workspace *w, const Heads *heads, int first_row, const int num_a, int count, int64_t start,
                        int64_t run_start, const bf16 *const keys[GROUPS], int is_plain, int has_scales) {
    const int64_t dim = heads->head_dim, depth = dim / TILE_DEPTH;
    Ahead ahead = nothing_ahead(w);
    const row_element *queries = w->queries + first_row / TILE_ROWS * depth * TILE_SIZE;
    for (int pair = 0; pair < GROUPS / 2; pair++) {
        ask(w, 2);
        multiply_tiles(queries, depth * TILE_SIZE, num_a, count, keys[2 * pair], keys[2 * pair + 1] - keys[2 * pair], 2,
                       depth, w->scores[pair][0][0], &ahead);
    }
    if (!is_plain)
        for (int row = 0; row < count; row++)
            rule(w, heads, first_row, row, start, run_start, has_scales);
    for (int row = 0; row < count; row += TILE_ROWS)
        weigh(w, first_row, row, count - row < TILE_ROWS ? count - row : TILE_ROWS,
              has_rules(heads, has_scales) ? 1.0f : heads->scale, has_scales);
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
        float products[4 * 256] __attribute__((aligned(64)));
        ask(w, 2);
        multiply_tiles(w->weights[0], KEY_TILE * TILE_ROWS, num_a, count, w->values + d * KEY_TILE, LANES * KEY_TILE, 2,
                       KEY_TILE / TILE_DEPTH, products, &ahead);
        for (int row = 0; row < count; row++)
            for (int c = 0; c < 2; c++) {
                float *sum = &w->sums[first_row + row][d + c * LANES];
                const float *product = products + (row / TILE_ROWS * 2 + c) * 256 + row % TILE_ROWS * LANES;
                _mm512_storeu_ps(sum, _mm512_fmadd_ps(_mm512_loadu_ps(sum), _mm512_set1_ps(w->rescale[row]),
                                                      _mm512_loadu_ps(product)));
            }
    }
}
