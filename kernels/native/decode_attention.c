/* Decode attention straight from the blocks, in bfloat16 dot products: no copy of K or V is made, and blocks that
 * several sequences share are read once for all of them.
 *
 * A task is a run of blocks and the query rows that look at it. It leaves, for each of its rows and query heads, the
 * largest score, the sum of the weights and the weighted values; a row's parts are then merged in the order of their
 * keys (online softmax, Milakov and Gimelshein 2018). No row's numbers depend on which other rows a task has. */

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "vectors.h"

#define TILE 64       /* keys whose scores are in hand at a time */
#define MAX_ROWS 64   /* query rows, of all heads of a KV head, that a task may have */
#define MAX_DIM 256   /* of a head */
#define LINE 32       /* elements of a line of the processor's cache */
#define ROW_BLOCK 4   /* query rows whose products are in registers at a time */

/* A step's plan, the same for all layers of one shape of heads. Counts and offsets are of entries, not bytes. */
typedef struct {
    int64_t num_rows, num_tasks, num_members, num_heads, num_kv_heads, block_size;
    int64_t head_dim, num_slots; /* of the layer: set at each call */
    const int64_t *rows;         /* [num_rows] the packed token of each */
    const int64_t *positions;    /* [num_rows] of its query */
    const int64_t *row_parts;    /* [num_rows + 1] a row's parts are [row_parts[row], row_parts[row + 1]) of `parts` */
    const int64_t *parts;        /* [num_members] members, in the order of rows, then keys */
    const int64_t *task_members; /* [num_tasks + 1] into `members` */
    const int64_t *members;      /* [num_members] rows */
    const int64_t *task_blocks;  /* [num_tasks + 1] into `blocks` */
    const int64_t *blocks;       /* block ids */
    const int64_t *first_keys;   /* [num_tasks] first key seen, counted in the task's run */
    const int64_t *stop_keys;    /* [num_tasks] behind the last key seen */
    const int64_t *run_starts;   /* [num_tasks] position of the run's first key in the sequence */
} Plan;

typedef struct {
    float scale;
    const float *slopes; /* [num_heads], or null */
    const float *sinks;  /* [num_heads], or null */
} Rules;

/* What a task works with: queries, one tile of K and V as the dot products want them, scores, weights, sums. */
typedef struct {
    bf16 queries[MAX_ROWS][MAX_DIM];
    uint32_t keys[MAX_DIM / 2][TILE];   /* pairs of a key's elements; keys side by side */
    uint32_t values[TILE / 2][MAX_DIM]; /* pairs of two keys' elements; see `pair_values` for their order */
    float scores[MAX_ROWS][TILE];
    bf16 weights[MAX_ROWS][TILE];
    float sums[MAX_ROWS][MAX_DIM];
    float largest[MAX_ROWS], totals[MAX_ROWS];
} Workspace;

/* Transpose sixteen rows of sixteen 32-bit elements; `to` has TILE elements a row. */
INLINE void transpose(const __m512i in[LANES], uint32_t *to) {
    __m512i a[LANES], b[LANES];
    for (int i = 0; i < LANES; i += 2) {
        a[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + 2 + j]);
            b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
        a[4 + i] = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
        a[8 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        a[12 + i] = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(to + (0 + i) * TILE, _mm512_shuffle_i32x4(a[i], a[8 + i], 0x88));
        _mm512_storeu_si512(to + (8 + i) * TILE, _mm512_shuffle_i32x4(a[i], a[8 + i], 0xdd));
        _mm512_storeu_si512(to + (4 + i) * TILE, _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0x88));
        _mm512_storeu_si512(to + (12 + i) * TILE, _mm512_shuffle_i32x4(a[4 + i], a[12 + i], 0xdd));
    }
}

/* Put sixteen keys into columns [column, column + 16) of the tile. Rows that are null are zeros. */
INLINE void pair_keys(Workspace *w, const bf16 *const rows[LANES], int column, int64_t head_dim) {
    for (int64_t d = 0; d < head_dim; d += 2 * LANES) {
        __m512i in[LANES];
        for (int i = 0; i < LANES; i++)
            in[i] = rows[i] ? _mm512_loadu_si512(rows[i] + d) : _mm512_setzero_si512();
        transpose(in, &w->keys[d / 2][column]);
    }
}

/* Put the values of keys [column, column + 16) beside each other in pairs. In each 32 elements, the pairs of the first
 * four of every eight come first: what unpacking within lanes of 128 bits gives; `place` undoes it. */
INLINE void pair_values(Workspace *w, const bf16 *const rows[LANES], int column, int64_t head_dim) {
    for (int i = 0; i < LANES; i += 2)
        for (int64_t d = 0; d < head_dim; d += 2 * LANES) {
            const __m512i even = rows[i] ? _mm512_loadu_si512(rows[i] + d) : _mm512_setzero_si512();
            const __m512i odd = rows[i + 1] ? _mm512_loadu_si512(rows[i + 1] + d) : _mm512_setzero_si512();
            uint32_t *to = &w->values[(column + i) / 2][d];
            _mm512_storeu_si512(to, _mm512_unpacklo_epi16(even, odd));
            _mm512_storeu_si512(to + LANES, _mm512_unpackhi_epi16(even, odd));
        }
}

/* Undo the order of `pair_values`: element i of 32 is at lane of 128 bits (i / 4) % 4 of half i / 16. */
INLINE void place(const float *from, float *to) {
    for (int i = 0; i < 2 * LANES; i++)
        to[8 * (i / 4 % 4) + 4 * (i / LANES) + i % 4] = from[i];
}

INLINE __m512i pair_at(const bf16 *from) {
    uint32_t pair;
    memcpy(&pair, from, sizeof pair);
    return _mm512_set1_epi32((int)pair);
}

/* scores = queries . keys * scale for `count` rows from `row` on, over the whole tile. */
INLINE void multiply_keys(Workspace *w, int row, const int count, int64_t head_dim, float scale) {
    __m512 sums[ROW_BLOCK][TILE / LANES];
    for (int r = 0; r < count; r++)
        for (int c = 0; c < TILE / LANES; c++)
            sums[r][c] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < head_dim / 2; pair++) {
        __m512bh keys[TILE / LANES];
        for (int c = 0; c < TILE / LANES; c++)
            keys[c] = (__m512bh)_mm512_loadu_si512(&w->keys[pair][c * LANES]);
        for (int r = 0; r < count; r++) {
            const __m512bh query = (__m512bh)pair_at(&w->queries[row + r][2 * pair]);
            for (int c = 0; c < TILE / LANES; c++)
                sums[r][c] = _mm512_dpbf16_ps(sums[r][c], keys[c], query);
        }
    }
    for (int r = 0; r < count; r++)
        for (int c = 0; c < TILE / LANES; c++)
            _mm512_storeu_ps(&w->scores[row + r][c * LANES], _mm512_mul_ps(sums[r][c], _mm512_set1_ps(scale)));
}

/* sums = sums * rescale + weights . values for `count` rows from `row` on. */
INLINE void multiply_values(Workspace *w, int row, const int count, int64_t head_dim, const float *rescale) {
    for (int64_t d = 0; d < head_dim; d += 2 * LANES) {
        __m512 sums[ROW_BLOCK][2];
        for (int r = 0; r < count; r++)
            for (int c = 0; c < 2; c++)
                sums[r][c] = _mm512_mul_ps(_mm512_loadu_ps(&w->sums[row + r][d + c * LANES]),
                                           _mm512_set1_ps(rescale[row + r]));
        for (int pair = 0; pair < TILE / 2; pair++) {
            __m512bh values[2];
            for (int c = 0; c < 2; c++)
                values[c] = (__m512bh)_mm512_loadu_si512(&w->values[pair][d + c * LANES]);
            for (int r = 0; r < count; r++) {
                const __m512bh weight = (__m512bh)pair_at(&w->weights[row + r][2 * pair]);
                for (int c = 0; c < 2; c++)
                    sums[r][c] = _mm512_dpbf16_ps(sums[r][c], values[c], weight);
            }
        }
        for (int r = 0; r < count; r++)
            for (int c = 0; c < 2; c++)
                _mm512_storeu_ps(&w->sums[row + r][d + c * LANES], sums[r][c]);
    }
}

/* Turn a row's scores into weights beside what it has so far, and return what that is to be multiplied by. */
INLINE float weigh(Workspace *w, int row, int first, int stop, float slope, int64_t distance) {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512 scores[TILE / LANES];
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (int c = 0; c < TILE / LANES; c++) {
        const __m512i keys = _mm512_add_epi32(lanes, _mm512_set1_epi32(c * LANES));
        const __mmask16 seen = _mm512_cmpge_epi32_mask(keys, _mm512_set1_epi32(first)) &
                               _mm512_cmplt_epi32_mask(keys, _mm512_set1_epi32(stop));
        __m512 s = _mm512_loadu_ps(&w->scores[row][c * LANES]);
        if (slope != 0.0f) {
            const __m512i away = _mm512_add_epi32(keys, _mm512_set1_epi32((int)distance));
            s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(away), _mm512_set1_ps(slope), s);
        }
        scores[c] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, s);
        most = _mm512_max_ps(most, scores[c]);
    }
    const float largest = fmaxf(w->largest[row], _mm512_reduce_max_ps(most));
    /* A row that has seen nothing finite yet: its weights become 0, or NaN where a score is NaN. */
    const __m512 base = _mm512_set1_ps(largest == -INFINITY ? 0.0f : largest);
    __m512 total = _mm512_setzero_ps();
    for (int c = 0; c < TILE / LANES; c++) {
        const __m512 weights = exp_ps(_mm512_sub_ps(scores[c], base));
        total = _mm512_add_ps(total, weights);
        store_bf16(&w->weights[row][c * LANES], weights);
    }
    const float rescale = w->largest[row] == -INFINITY ? 0.0f : expf(w->largest[row] - largest);
    w->totals[row] = w->totals[row] * rescale + _mm512_reduce_add_ps(total);
    w->largest[row] = largest;
    return rescale;
}

/* Ask for the K and V of sixteen slots, which will be wanted a tile later: blocks are too short for the processor to
 * foresee what follows them. */
INLINE void fetch(const bf16 *keys, const bf16 *values, int64_t slot, int64_t dim) {
    for (int64_t i = 0; i < LANES * dim; i += LINE) {
        _mm_prefetch((const char *)(keys + slot * dim + i), _MM_HINT_T0);
        _mm_prefetch((const char *)(values + slot * dim + i), _MM_HINT_T0);
    }
}

#define BY_ROW_BLOCKS(num_rows, call)                                                                                  \
    for (int row = 0; row < (num_rows); row += ROW_BLOCK)                                                              \
        switch ((num_rows) - row) {                                                                                    \
        case 1: { enum { count = 1 }; call; break; }                                                                   \
        case 2: { enum { count = 2 }; call; break; }                                                                   \
        case 3: { enum { count = 3 }; call; break; }                                                                   \
        default: { enum { count = ROW_BLOCK }; call; break; }                                                          \
        }

/* One KV head of one task: fill the parts of its members. */
static void attend(const Plan *p, const Rules *rules, int64_t task, int64_t kv_head, const bf16 *query,
                   int64_t query_stride, const bf16 *keys, const bf16 *values, float *parts, Workspace *w) {
    const int64_t per_head = p->num_heads / p->num_kv_heads, dim = p->head_dim, size = p->block_size;
    const int64_t first_member = p->task_members[task], *blocks = p->blocks + p->task_blocks[task];
    const int num_rows = (int)((p->task_members[task + 1] - first_member) * per_head);
    for (int row = 0; row < num_rows; row++) {
        const int64_t token = p->rows[p->members[first_member + row / per_head]];
        memcpy(w->queries[row], query + token * query_stride + (kv_head * per_head + row % per_head) * dim,
               (size_t)dim * sizeof(bf16));
        memset(w->sums[row], 0, (size_t)dim * sizeof(float));
        w->largest[row] = -INFINITY;
        w->totals[row] = 0.0f;
    }
    const int64_t first_key = p->first_keys[task], stop_key = p->stop_keys[task];
    for (int64_t start = first_key / TILE * TILE; start < stop_key; start += TILE) {
        for (int column = 0; column < TILE; column += LANES) {
            const bf16 *key_rows[LANES], *value_rows[LANES];
            /* One division for all of them: a processor takes longer for it than for the rest of a key. */
            int64_t block = (start + column) / size, offset = (start + column) % size;
            for (int i = 0; i < LANES; i++) {
                const int64_t key = start + column + i;
                const int is_seen = key >= first_key && key < stop_key;
                const int64_t slot = is_seen ? kv_head * p->num_slots + blocks[block] * size + offset : 0;
                key_rows[i] = is_seen ? keys + slot * dim : NULL;
                value_rows[i] = is_seen ? values + slot * dim : NULL;
                if (++offset == size) {
                    offset = 0;
                    block++;
                }
            }
            if (start + column + TILE < stop_key) {
                const int64_t ahead = start + column + TILE;
                fetch(keys, values, kv_head * p->num_slots + blocks[ahead / size] * size + ahead % size, dim);
            }
            pair_keys(w, key_rows, column, dim);
            pair_values(w, value_rows, column, dim);
        }
        BY_ROW_BLOCKS(num_rows, multiply_keys(w, row, count, dim, rules->scale))
        float rescale[MAX_ROWS];
        const int first = first_key > start ? (int)(first_key - start) : 0;
        const int stop = stop_key - start < TILE ? (int)(stop_key - start) : TILE;
        for (int row = 0; row < num_rows; row++) {
            const float slope = rules->slopes ? rules->slopes[kv_head * per_head + row % per_head] : 0.0f;
            const int64_t at = p->positions[p->members[first_member + row / per_head]];
            rescale[row] = weigh(w, row, first, stop, slope, p->run_starts[task] + start - at);
        }
        BY_ROW_BLOCKS(num_rows, multiply_values(w, row, count, dim, rescale))
    }
    for (int row = 0; row < num_rows; row++) {
        float *part = parts + ((kv_head * p->num_members + first_member) * per_head + row) * (dim + 2);
        part[0] = w->largest[row];
        part[1] = w->totals[row];
        for (int64_t d = 0; d < dim; d += 2 * LANES)
            place(&w->sums[row][d], part + 2 + d);
    }
}

/* Merge a row's parts for one query head. */
static void merge(const Plan *p, const Rules *rules, int64_t row, int64_t head, const float *parts, bf16 *output) {
    const int64_t per_head = p->num_heads / p->num_kv_heads, dim = p->head_dim;
    const int64_t kv_head = head / per_head, first = p->row_parts[row], stop = p->row_parts[row + 1];
    float largest = rules->sinks ? rules->sinks[head] : -INFINITY;
    const float *found[stop - first];
    for (int64_t i = first; i < stop; i++) {
        found[i - first] = parts + ((kv_head * p->num_members + p->parts[i]) * per_head + head % per_head) * (dim + 2);
        largest = fmaxf(largest, found[i - first][0]);
    }
    float total = rules->sinks ? expf(rules->sinks[head] - largest) : 0.0f, factors[stop - first];
    for (int64_t i = 0; i < stop - first; i++) {
        factors[i] = found[i][0] == -INFINITY && found[i][1] == 0.0f ? 0.0f : expf(found[i][0] - largest);
        total += found[i][1] * factors[i];
    }
    bf16 *to = output + (p->rows[row] * p->num_heads + head) * dim;
    for (int64_t d = 0; d < dim; d += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < stop - first; i++)
            sum = _mm512_fmadd_ps(_mm512_loadu_ps(found[i] + 2 + d), _mm512_set1_ps(factors[i]), sum);
        store_bf16(to + d, _mm512_div_ps(sum, _mm512_set1_ps(total)));
    }
}

/* query, output: [num_tokens, num_heads, head_dim]; of query, tokens are query_stride elements apart. keys, values:
 * [num_kv_heads, num_slots, head_dim]. parts: [num_kv_heads, num_members, num_heads / num_kv_heads, head_dim + 2]. */
void pagemill_decode_attention(const Plan *planned, const bf16 *query, int64_t query_stride, const bf16 *keys,
                               const bf16 *values, bf16 *output, float *parts, int64_t head_dim, int64_t num_slots,
                               float scale, const float *slopes, const float *sinks) {
    const Rules rules = {scale, slopes, sinks};
    Plan plan = *planned;
    plan.head_dim = head_dim;
    plan.num_slots = num_slots;
    const Plan *p = &plan;
#pragma omp parallel
    {
        Workspace w;
#pragma omp for schedule(dynamic, 1)
        for (int64_t unit = 0; unit < p->num_tasks * p->num_kv_heads; unit++)
            attend(p, &rules, unit / p->num_kv_heads, unit % p->num_kv_heads, query, query_stride, keys, values, parts,
                   &w);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < p->num_rows * p->num_heads; unit++)
            merge(p, &rules, unit / p->num_heads, unit % p->num_heads, parts, output);
    }
}
