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

/* Of a step's tokens, those whose output is wanted. Behind the last layer most of a prompt's are not: their keys and values
 * are all that anybody will look at. */
typedef struct {
    const int64_t *rows;      /* [num_rows] in ascending order, or null: all are */
    const uint8_t *is_wanted; /* [num_tokens]; null where rows are */
    int64_t num_rows;
} Wanted;

INLINE int is_wanted(const Wanted *wanted, int64_t token) {
    return !wanted->rows || wanted->is_wanted[token];
}

/* Put a group's values where they lie in column tiles that are KEY_TILE keys deep; `c` is its place in the tile. */
INLINE void join_values(Workspace *w, const bf16 *group, int c, int64_t dim) {
    for (int64_t d = 0; d < dim; d += LANES)
        for (int i = 0; i < TILE_SIZE / 2; i += 2 * LANES)
            _mm512_storeu_si512(w->values + d * KEY_TILE + c * (TILE_SIZE / 2) + i,
                                _mm512_loadu_si512(group + d * GROUP + i));
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

/* Take in the queries of a task's members that are wanted. Returns the number of rows. */
INLINE int take_queries(Workspace *w, const Plan *p, const Heads *heads, const Wanted *wanted, int64_t task,
                        int64_t kv_head, const bf16 *query, int64_t query_stride) {
    const int64_t per_head = heads->num_heads / heads->num_kv_heads, dim = heads->head_dim;
    int row = 0;
    for (int64_t member = p->task_members[task]; member < p->task_members[task + 1]; member++) {
        if (!is_wanted(wanted, p->members[member]))
            continue;
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
            w->parts[row] = (kv_head * p->num_members + member) * per_head + head % per_head;
        }
    }
    return row;
}

/* The keys that a task's wanted queries see: of what groups of its run, and where their first tile begins. */
typedef struct {
    const int64_t *blocks;
    int64_t block_size, first_group, last_group, first_start;
} Span;

INLINE Span span_of(const Plan *p, const Wanted *wanted, int64_t task) {
    int64_t first_key = INT64_MAX / 2, stop_key = 0; /* where no query is wanted; a run's start is yet to be added */
    for (int64_t member = p->task_members[task]; member < p->task_members[task + 1]; member++) {
        if (!is_wanted(wanted, p->members[member]))
            continue;
        first_key = p->first_keys[member] < first_key ? p->first_keys[member] : first_key;
        stop_key = p->stop_keys[member] > stop_key ? p->stop_keys[member] : stop_key;
    }
    /* Tiles begin at multiples of their size in the sequence, wherever the run and the first key of these queries are. */
    const int64_t run_start = p->run_starts[task], start = (run_start + first_key) / KEY_TILE * KEY_TILE - run_start;
    return (Span){p->blocks + p->task_blocks[task], p->block_size, first_key / GROUP, (stop_key - 1) / GROUP, start};
}

/* The first slot of a group. */
INLINE int64_t slot_of(const Span *span, int64_t group) {
    const int64_t a_block = span->block_size / GROUP;
    return span->blocks[group / a_block] * span->block_size + group % a_block * GROUP;
}

/* Note what the tile at `start` reads, to be asked for. */
INLINE void expect(Workspace *w, const Cache *cache, int64_t kv_head, const Span *span, int64_t start, int64_t dim) {
    w->num_coming = w->num_asked = 0;
    w->coming_bytes = GROUP * dim * element_size(cache);
    for (int64_t group = start / GROUP; group < start / GROUP + GROUPS; group++)
        if (group >= span->first_group && group <= span->last_group) {
            w->coming[w->num_coming++] = group_at(cache->keys, cache, kv_head, slot_of(span, group), dim);
            w->coming[w->num_coming++] = group_at(cache->values, cache, kv_head, slot_of(span, group), dim);
        }
}

/* Attend to the tile at `start` with all rows of a task that see some of it. */
INLINE void attend_rows(Workspace *w, const Heads *heads, int num_rows, int64_t start, int64_t run_start,
                        const bf16 *const keys[GROUPS], int has_scales) {
    for (int row = 0; row < num_rows; row += 2 * TILE_ROWS) {
        const int count = num_rows - row < 2 * TILE_ROWS ? num_rows - row : 2 * TILE_ROWS;
        int is_seen = 0, is_plain = !has_rules(heads, has_scales);
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

/* One unit, a KV head of a task: fill the parts of its wanted members. `next` is the unit that this thread will likely do
 * after it, or the number of all units. */
static void attend(const Plan *p, const Heads *heads, const Cache *cache, const Wanted *wanted, int64_t unit,
                   int64_t next, const bf16 *query, int64_t query_stride, float *parts, Workspace *w) {
    const int64_t dim = heads->head_dim, num_kv_heads = heads->num_kv_heads;
    const int64_t task = unit / num_kv_heads, kv_head = unit % num_kv_heads;
    const int num_rows = take_queries(w, p, heads, wanted, task, kv_head, query, query_stride);
    if (!num_rows)
        return;
    const Span span = span_of(p, wanted, task);
    for (int64_t start = span.first_start; start <= span.last_group * GROUP; start += KEY_TILE) {
        const bf16 *keys[GROUPS];
        for (int c = 0; c < GROUPS; c++) {
            /* For what none sees, a group that is seen stands in: no weight of 0 stops another sequence's NaN. */
            int64_t group = start / GROUP + c;
            group = group < span.first_group ? span.first_group : group > span.last_group ? span.last_group : group;
            keys[c] = take_group(w, cache, kv_head, slot_of(&span, group), c, dim);
        }
        if (start + KEY_TILE <= span.last_group * GROUP)
            expect(w, cache, kv_head, &span, start + KEY_TILE, dim);
        else if (next < p->num_tasks * num_kv_heads) {
            const Span other = span_of(p, wanted, next / num_kv_heads);
            expect(w, cache, next % num_kv_heads, &other, other.first_start, dim);
        }
        attend_rows(w, heads, num_rows, start, p->run_starts[task], keys, cache->kind != AS_THEY_ARE);
    }
    for (int row = 0; row < num_rows; row++) {
        float *part = parts + w->parts[row] * (dim + 2);
        part[0] = w->largest[row];
        part[1] = w->totals[row];
        memcpy(part + 2, w->sums[row], (size_t)dim * sizeof(float));
    }
}

/* Merge a query's parts for one head. Its elements go to `output` as a row of [num_rows, num_heads * head_dim], in bfloat16,
 * or into row tiles of that. */
INLINE void merge(const Plan *p, const Heads *heads, int64_t token, int64_t row, int64_t head, const float *parts,
                  void *output, const int is_tiled) {
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
            store_row(in_row_tiles(output, width, row, element), attended);
        else
            store_bf16((bf16 *)output + row * width + element, attended);
    }
}

/* All of a step's attention in one layer that is wanted. query: [num_tokens, num_heads, head_dim], tokens query_stride
 * elements apart. output: a row for each token that is wanted. parts: room for [num_kv_heads, num_members, num_heads /
 * num_kv_heads, head_dim + 2]. To be called by all threads of a team that has begun tiles; they leave it together. */
INLINE void attend_all(Team *team, const Plan *p, const Heads *heads, const Cache *cache, const Wanted *wanted,
                       const bf16 *query, int64_t query_stride, float *parts, void *output, const int is_tiled) {
    Workspace w;
    w.num_coming = w.num_asked = 0;
    if (cache->kind == FP8)
        w.fp8 = fp8_table();
    const int64_t num_units = p->num_tasks * heads->num_kv_heads;
    Units units = share_units(team, num_units);
    for (int64_t unit = take_unit(&units); unit < num_units; unit = take_unit(&units))
        attend(p, heads, cache, wanted, unit, likely_unit(&units), query, query_stride, parts, &w);
    meet_team(team);
    const int64_t num_rows = wanted->rows ? wanted->num_rows : p->num_tokens;
#pragma omp for schedule(static)
    for (int64_t unit = 0; unit < num_rows * heads->num_heads; unit++) {
        const int64_t row = unit / heads->num_heads, token = wanted->rows ? wanted->rows[row] : row;
        merge(p, heads, token, row, unit % heads->num_heads, parts, output, is_tiled);
    }
}
