/* What stands between a decoder layer's matrix products: norm, rotary embedding with the store to the KV cache, and the
 * gated activation. All tensors are bfloat16; widths are multiples of 16. */

#include <math.h>

#include "vectors.h"

#define PARALLEL_FROM 65536 /* elements: below, starting the threads costs more than they bring */

/* y = x / sqrt(mean(x**2) + eps) * weight, each of num_rows rows of width. */
void pagemill_rms_norm(const bf16 *x, const bf16 *weight, bf16 *y, int64_t num_rows, int64_t width, float eps) {
#pragma omp parallel for if (num_rows * width >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) {
        const bf16 *from = x + row * width;
        bf16 *to = y + row * width;
        __m512 squares = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            const __m512 v = load_bf16(from + i);
            squares = _mm512_fmadd_ps(v, v, squares);
        }
        const __m512 factor = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + eps));
        for (int64_t i = 0; i < width; i += LANES)
            store_bf16(to + i, _mm512_mul_ps(_mm512_mul_ps(load_bf16(from + i), factor), load_bf16(weight + i)));
    }
}

/* y = silu(gate) * up, where a row of gate_up is gate, then up, each of width. */
void pagemill_silu_mul(const bf16 *gate_up, bf16 *y, int64_t num_rows, int64_t width) {
#pragma omp parallel for if (num_rows * width >= PARALLEL_FROM)
    for (int64_t row = 0; row < num_rows; row++) {
        const bf16 *gate = gate_up + 2 * row * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            const __m512 g = load_bf16(gate + i);
            const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), g)));
            store_bf16(y + row * width + i, _mm512_mul_ps(_mm512_div_ps(g, below), load_bf16(up + i)));
        }
    }
}

/* One head: y[i] = x[i] cos[i] - x[i + half] sin[i], and y[i + half] = x[i + half] cos[i + half] + x[i] sin[i + half].
 * y may be x. */
INLINE void rotate(const bf16 *x, const bf16 *cos, const bf16 *sin, bf16 *y, int64_t half) {
    for (int64_t i = 0; i < half; i += LANES) {
        const __m512 low = load_bf16(x + i), high = load_bf16(x + half + i);
        const __m512 turned_low = _mm512_mul_ps(high, load_bf16(sin + i));
        const __m512 turned_high = _mm512_mul_ps(low, load_bf16(sin + half + i));
        store_bf16(y + i, _mm512_fmsub_ps(low, load_bf16(cos + i), turned_low));
        store_bf16(y + half + i, _mm512_fmadd_ps(high, load_bf16(cos + half + i), turned_high));
    }
}

/* Rotate a step's queries in place, and put its rotated keys and its values into their slots.
 *
 * qkv: [num_tokens, num_heads + 2 * num_kv_heads, head_dim]. cos, sin: [num_tokens, head_dim]. key_cache, value_cache:
 * [num_kv_heads, num_slots, head_dim]. slots: [num_tokens]. */
void pagemill_rotate_and_store(bf16 *qkv, const bf16 *cos, const bf16 *sin, bf16 *key_cache, bf16 *value_cache,
                               const int64_t *slots, int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads,
                               int64_t head_dim, int64_t num_slots) {
    const int64_t stride = (num_heads + 2 * num_kv_heads) * head_dim, half = head_dim / 2;
#pragma omp parallel for if (num_tokens * stride >= PARALLEL_FROM)
    for (int64_t token = 0; token < num_tokens; token++) {
        bf16 *row = qkv + token * stride;
        const bf16 *c = cos + token * head_dim, *s = sin + token * head_dim;
        for (int64_t head = 0; head < num_heads; head++)
            rotate(row + head * head_dim, c, s, row + head * head_dim, half);
        for (int64_t head = 0; head < num_kv_heads; head++) {
            const int64_t to = (head * num_slots + slots[token]) * head_dim;
            const bf16 *value = row + (num_heads + num_kv_heads + head) * head_dim;
            rotate(row + (num_heads + head) * head_dim, c, s, key_cache + to, half);
            for (int64_t i = 0; i < head_dim; i++)
                value_cache[to + i] = value[i];
        }
    }
}
