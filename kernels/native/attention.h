/* Attention straight from the blocks: no copy of K is made, and blocks that several sequences share are read once for
 * all of them.
 *
 * A task is a run of blocks and the queries that look at it, of one sequence or of several. It leaves, for each of its
 * queries and heads, the largest score, the sum of the weights and the weighted values; a query's parts are then merged
 * in the order of their keys (online softmax, Milakov and Gimelshein 2018). A query's numbers depend on where its keys
 * are cut, not on which other queries a task has. */
#pragma once

#include "matrix.h"
#include "scores.h"

#define LINE 64 /* bytes of a line of the processor's cache */

/* A step's plan, the same for all layers of one shape of heads and one window. */
typedef struct {
    int64_t num_tokens, num_tasks, num_members, block_size;
    const int64_t *positions;    /* [num_tokens] of each query in its sequence */
    const int64_t *token_parts;  /* [num_tokens + 1] a query's parts: [token_parts[t], token_parts[t + 1]) of `parts` */
    const int64_t *parts;        /* [num_members] members, in the order of queries, then keys */
    const int64_t *task_members; /* [num_tasks + 1] into the next three */
    const int64_t *members;      /* [num_members] packed tokens */
    const int64_t *first_keys;   /* [num_members] first key seen, counted in the task's run */
    const int64_t *stop_keys;    /* [num_members] behind the last key seen */
    const int64_t *task_blocks;  /* [num_tasks + 1] into `blocks` */
    const int64_t *blocks;       /* block ids */
    const int64_t *run_starts;   /* [num_tasks] position of the run's first key in the sequence */
} Plan;

/* Put a group's values where they lie in column tiles that are KEY_TILE keys deep; `c` is its place in the tile. */
INLINE void join_values(Workspace *w, const bf16 *group, int c, int64_t dim) {
    for (int64_t d = 0; d < dim; d += LANES)
        for (int i = 0; i < TILE_SIZE / 2; i += 2 * LANES)
            _mm512_storeu_si512(w->values + d * KEY_TILE + c * (TILE_SIZE / 2) + i,
                                _mm512_loadu_si512(group + d * GROUP + i));
}

/* Ask for a group that will be wanted a tile later: blocks are too short for the processor to foresee what follows. */
INLINE void fetch(const Cache *cache, int64_t kv_head, int64_t slot, int64_t dim) {
    const char *keys = group_at(cache->keys, cache, kv_head, slot, dim);
    const char *values = group_at(cache->values, cache, kv_head, slot, dim);
    for (int64_t i = 0; i < GROUP * dim * element_size(cache); i += LINE) {
        _mm_prefetch(keys + i, _MM_HINT_T0);
        _mm_prefetch(values + i, _MM_HINT_T0);
    }
}

/* Take in a group of keys and values, the c-th of a tile. Returns the keys. */
INLINE const bf16 *take_group(Workspace *w, const Cache *cache, int64_t kv_head, int64_t slot, int c, int64_t dim) {
    const void *keys = group_at(cache->keys, cache, kv_head, slot, dim);
    const void *values = group_at(cache->values, cache, kv_head, slot, dim);
    if (cache->kind == AS_THEY_ARE) {
        join_values(w, values, c, dim);
        return keys;
    }
    bf16 wide[GROUP * MAX_DIM];
    widen(values, GROUP * dim, cache->kind, &w->fp8, wide);
    join_values(w, wide, c, dim);
    widen(keys, GROUP * dim, cache->kind, &w->fp8, w->keys + c * GROUP * dim);
    const int64_t at = kv_head * cache->num_slots + slot;
    _mm512_storeu_ps(w->key_scales + c * GROUP, load_bf16(cache->key_scales + at));
    _mm512_storeu_ps(w->value_scales + c * GROUP, load_bf16(cache->value_scales + at));
    return w->keys + c * GROUP * dim;
}

/* Take in the queries of a task's members. Returns the number of rows. */
INLINE int take_queries(Workspace *w, const Plan *p, const Heads *heads, int64_t task, int64_t kv_head,
                        const bf16 *query, int64_t query_stride) {
    const int64_t per_head = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim;
    int row = 0;
    for (int64_t member = p->task_members[task]; member < p->task_members[task + 1]; member++)
        for (int64_t head = kv_head * per_head; head < (kv_head + 1) * per_head; head++, row++) {
            const bf16 *from = query + p->members[member] * query_stride + head * dim;
            for (int64_t d = 0; d < dim; d += TILE_DEPTH)
                copy_row(in_row_tiles(w->queries, dim, row, d), from + d, 0xffffffff);
            memset(w->sums[row], 0, (size_t)dim * sizeof(float));
            w->largest[row] = -INFINITY;
            w->totals[row] = 0.0f;
            w->first_keys[row] = p->first_keys[member];
            w->stop_keys[row] = p->stop_keys[member];
            w->positions[row] = p->positions[p->members[member]];
            w->slopes[row] = heads->slopes ? heads->slopes[head] : 0.0f;
        }
    return row;
}

/* One KV head of one task: fill the parts of its members. */
static void attend(const Plan *p, const Heads *heads, const Cache *cache, int64_t task, int64_t kv_head,
                   const bf16 *query, int64_t query_stride, float *parts, Workspace *w) {
    const int64_t dim = heads->head_dim, per_head = heads->num_heads / heads->num_kv_heads;
    const int64_t *blocks = p->blocks + p->task_blocks[task], run_start = p->run_starts[task];
    const int has_scales = cache->kind != AS_THEY_ARE;
    const int num_rows = take_queries(w, p, heads, task, kv_head, query, query_stride);
    int64_t first_key = INT64_MAX, stop_key = 0;
    for (int row = 0; row < num_rows; row++) {
        first_key = w->first_keys[row] < first_key ? w->first_keys[row] : first_key;
        stop_key = w->stop_keys[row] > stop_key ? w->stop_keys[row] : stop_key;
    }
    const int64_t groups_a_block = p->block_size / GROUP;
    const int64_t first_group = first_key / GROUP, last_group = (stop_key - 1) / GROUP;
    /* Tiles begin at multiples of their size in the sequence, wherever the run and the first key of these queries are. */
    for (int64_t start = (run_start + first_key) / KEY_TILE * KEY_TILE - run_start; start < stop_key; start += KEY_TILE) {
        const bf16 *keys[GROUPS];
        for (int c = 0; c < GROUPS; c++) {
            /* For what none sees, a group that is seen stands in: no weight of 0 stops another sequence's NaN. */
            int64_t group = start / GROUP + c;
            group = group < first_group ? first_group : group > last_group ? last_group : group;
            int64_t slot = blocks[group / groups_a_block] * p->block_size + group % groups_a_block * GROUP;
            keys[c] = take_group(w, cache, kv_head, slot, c, dim);
            group = start / GROUP + c + GROUPS;
            if (group <= last_group) {
                slot = blocks[group / groups_a_block] * p->block_size + group % groups_a_block * GROUP;
                fetch(cache, kv_head, slot, dim);
            }
        }
        for (int row = 0; row < num_rows; row += 2 * TILE_ROWS) {
            const int count = num_rows - row < 2 * TILE_ROWS ? num_rows - row : 2 * TILE_ROWS;
            int is_seen = 0, is_plain = heads->softcap == 0.0f && !heads->slopes && !has_scales;
            for (int r = row; r < row + count; r++) {
                is_seen |= w->first_keys[r] < start + KEY_TILE && w->stop_keys[r] > start;
                is_plain &= w->first_keys[r] <= start && w->stop_keys[r] >= start + KEY_TILE;
            }
            if (is_seen && count > TILE_ROWS)
                attend_tile(w, heads, row, 2, count, start, run_start, keys, is_plain, has_scales);
            else if (is_seen)
                attend_tile(w, heads, row, 1, count, start, run_start, keys, is_plain, has_scales);
        }
    }
    for (int row = 0; row < num_rows; row++) {
        float *part = parts + ((kv_head * p->num_members + p->task_members[task]) * per_head + row) * (dim + 2);
        part[0] = w->largest[row];
        part[1] = w->totals[row];
        memcpy(part + 2, w->sums[row], (size_t)dim * sizeof(float));
    }
}

/* Merge a query's parts for one head. Its elements go to `output` as a row of [num_tokens, num_heads * head_dim], in
 * bfloat16, or into row tiles of that. */
INLINE void merge(const Plan *p, const Heads *heads, int64_t token, int64_t head, const float *parts, void *output,
                  const int is_tiled) {
    const int64_t per_head = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim;
    const int64_t kv_head = head / per_head, first = p->token_parts[token], stop = p->token_parts[token + 1];
    float largest = heads->sinks ? heads->sinks[head] : -INFINITY;
    const float *found[stop - first];
    for (int64_t i = first; i < stop; i++) {
        found[i - first] = parts + ((kv_head * p->num_members + p->parts[i]) * per_head + head % per_head) * (dim + 2);
        largest = fmaxf(largest, found[i - first][0]);
    }
    float total = heads->sinks ? expf(heads->sinks[head] - largest) : 0.0f, factors[stop - first];
    for (int64_t i = 0; i < stop - first; i++) {
        factors[i] = found[i][0] == -INFINITY && found[i][1] == 0.0f ? 0.0f : expf(found[i][0] - largest);
        total += found[i][1] * factors[i];
    }
    const int64_t width = heads->num_heads * dim;
    for (int64_t d = 0; d < dim; d += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < stop - first; i++)
            sum = _mm512_fmadd_ps(_mm512_loadu_ps(found[i] + 2 + d), _mm512_set1_ps(factors[i]), sum);
        const int64_t element = head * dim + d;
        const __m512 attended = _mm512_div_ps(sum, _mm512_set1_ps(total));
        if (is_tiled)
            store_row(in_row_tiles(output, width, token, element), attended);
        else
            store_bf16((bf16 *)output + token * width + element, attended);
    }
}

/* All of a step's attention in one layer. query: [num_tokens, num_heads, head_dim], tokens query_stride elements apart.
 * parts: room for [num_kv_heads, num_members, num_heads / num_kv_heads, head_dim + 2]. To be called by all threads of a
 * team that has begun tiles; they leave it together. */
INLINE void attend_all(const Plan *p, const Heads *heads, const Cache *cache, const bf16 *query, int64_t query_stride,
                       float *parts, void *output, const int is_tiled) {
    Workspace w;
    if (cache->kind == FP8)
        w.fp8 = fp8_table();
#pragma omp for schedule(dynamic, 1)
    for (int64_t unit = 0; unit < p->num_tasks * heads->num_kv_heads; unit++)
        attend(p, heads, cache, unit / heads->num_kv_heads, unit % heads->num_kv_heads, query, query_stride, parts, &w);
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < p->num_tokens * heads->num_heads; unit++)
        merge(p, heads, unit / heads->num_heads, unit % heads->num_heads, parts, output, is_tiled);
}
