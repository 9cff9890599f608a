/* The KV cache of one layer in tiles, so that attention multiplies with it as it lies. Sixteen slots are a group; a block
 * is one or more of them.
 *
 *   keys    [num_kv_heads][num_slots / 16] column tiles of [head_dim, 16 keys]
 *   values  [num_kv_heads][num_slots / 16][head_dim / 16][8 pairs of keys][16 elements][2 keys of a pair] */
#pragma once

#include "tiles.h"

#define GROUP 16 /* slots */

typedef struct {
    bf16 *keys, *values;
    int64_t num_slots;
} Cache;

INLINE bf16 *group_at(bf16 *of, const Cache *cache, int64_t head, int64_t slot, int64_t head_dim) {
    return of + (head * cache->num_slots + slot / GROUP * GROUP) * head_dim;
}

/* Put a key into its slot. */
INLINE void store_key(const Cache *cache, int64_t head, int64_t slot, const bf16 *key, int64_t head_dim) {
    bf16 *to = group_at(cache->keys, cache, head, slot, head_dim) + slot % GROUP * 2;
    for (int64_t pair = 0; pair < head_dim / 2; pair++)
        memcpy(to + pair * 2 * GROUP, key + 2 * pair, 2 * sizeof(bf16));
}

/* Put a value into its slot. */
INLINE void store_value(const Cache *cache, int64_t head, int64_t slot, const bf16 *value, int64_t head_dim) {
    const int64_t in_group = slot % GROUP;
    bf16 *to = group_at(cache->values, cache, head, slot, head_dim) + in_group / 2 * 2 * LANES + in_group % 2;
    for (int64_t i = 0; i < head_dim; i += LANES)
        for (int64_t lane = 0; lane < LANES; lane++)
            to[i * GROUP + 2 * lane] = value[i + lane];
}
