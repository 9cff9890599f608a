/* Attention and the store to the KV cache, for layers of any model. */

#include "attention.h"

/* output: [num_tokens, num_heads, head_dim]; the rest as in `attend_all`. */
void pagemill_attention(const Plan *plan, const Heads *heads, const Cache *cache, const bf16 *query,
                        int64_t query_stride, float *parts, bf16 *output) {
    const Wanted all = {NULL, NULL, 0};
    ROOM_FOR_SHARES(shares);
#pragma omp parallel
    {
        Team team = join_team(shares);
        const unsigned before = begin_tiles();
        attend_all(&team, plan, heads, cache, &all, query, query_stride, parts, output, 0);
        end_tiles(before);
    }
}

/* Put keys and values, [num_tokens, num_kv_heads, head_dim] with strides of their own between tokens and heads, into
 * their slots, [num_tokens]. */
void pagemill_store(const Cache *cache, const int64_t *slots, const bf16 *key, const bf16 *value,
                    const int64_t *key_strides, const int64_t *value_strides, int64_t num_tokens, int64_t num_kv_heads,
                    int64_t head_dim) {
#pragma omp parallel for if (num_tokens > 16)
    for (int64_t token = 0; token < num_tokens; token++)
        for (int64_t head = 0; head < num_kv_heads; head++) {
            store_key(cache, head, slots[token], key + token * key_strides[0] + head * key_strides[1], head_dim);
            store_value(cache, head, slots[token], value + token * value_strides[0] + head * value_strides[1], head_dim);
        }
}
