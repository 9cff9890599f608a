/* The KV cache of one layer in tiles, so that attention multiplies with it as it lies. Sixteen slots are a group; a block
 * is one or more of them.
 *
 *   keys    [num_kv_heads][num_slots / 16] column tiles of [head_dim, 16 keys]
 *   values  [num_kv_heads][num_slots / 16][head_dim / 16][8 pairs of keys][16 elements][2 keys of a pair]
 *
 * Elements are bfloat16, or numbers of one byte (int8, or fp8 of 4 bits of exponent and 3 of mantissa), which are to be
 * multiplied with a scale a slot and head. */
#pragma once

#include "tiles.h"
#include "widening.h"

#define GROUP 16    /* slots */
#define MAX_DIM 256 /* of a head */

typedef struct {
    void *keys, *values;
    bf16 *key_scales, *value_scales; /* [num_kv_heads][num_slots], or null */
    int64_t num_slots, kind;
} Cache;

INLINE int64_t element_size(const Cache *cache) {
    return cache->kind == AS_THEY_ARE ? 2 : 1;
}

INLINE void *group_at(void *of, const Cache *cache, int64_t head, int64_t slot, int64_t head_dim) {
    return (char *)of + (head * cache->num_slots + slot / GROUP * GROUP) * head_dim * element_size(cache);
}

/* Sixteen floats, none above 448, as fp8: rounded to nearest, the even one of two. */
INLINE __m128i to_fp8(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(bits, 31), 7);
    const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(size, 20), one);
    const __m512i rounded = _mm512_add_epi32(size, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
    const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32((127 - 7) << 3));
    /* Below 2**-6 the steps are of 2**-9. */
    const __m512i small = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(size), _mm512_set1_ps(512.0f)));
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32((127 - 6) << 23));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i code = _mm512_mask_mov_epi32(normal, is_small, small);
    return _mm512_cvtepi32_epi8(_mm512_or_si512(sign, _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(0x7f))));
}

/* Write one head's numbers, and return their scale: that of the greatest number for the greatest of |x|, rounded to
 * bfloat16 before anything is divided by it. */
INLINE bf16 quantise(const bf16 *x, int64_t head_dim, int64_t kind, uint8_t *numbers) {
    const float greatest = kind == INT8 ? 127.0f : 448.0f;
    __m512 most = _mm512_setzero_ps();
    __mmask16 is_nan = 0;
    for (int64_t i = 0; i < head_dim; i += LANES) {
        const __m512 v = load_bf16(x + i);
        is_nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        most = _mm512_max_ps(most, _mm512_abs_ps(v));
    }
    const float exact = is_nan ? NAN : _mm512_reduce_max_ps(most) / greatest;
    const bf16 scale = bf16_of(exact);
    const float divisor = fmaxf(float_of(scale), 1.17549435e-38f); /* 0 is the scale of zeros */
    const __m512 limit = _mm512_set1_ps(greatest);
    for (int64_t i = 0; i < head_dim; i += LANES) {
        const __m512 ratio = _mm512_div_ps(load_bf16(x + i), _mm512_set1_ps(divisor));
        const __m512 v = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), _mm512_min_ps(limit, ratio));
        const __m128i bytes = kind == INT8 ? _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)) : to_fp8(v);
        _mm_storeu_si128((__m128i *)(numbers + i), bytes);
    }
    return scale;
}

/* Put a key into its slot. */
INLINE void store_key(const Cache *cache, int64_t head, int64_t slot, const bf16 *key, int64_t head_dim) {
    char *to = (char *)group_at(cache->keys, cache, head, slot, head_dim) + slot % GROUP * 2 * element_size(cache);
    if (cache->kind == AS_THEY_ARE) {
        for (int64_t pair = 0; pair < head_dim / 2; pair++)
            memcpy(to + pair * 4 * GROUP, key + 2 * pair, 2 * sizeof(bf16));
        return;
    }
    uint8_t numbers[MAX_DIM];
    cache->key_scales[head * cache->num_slots + slot] = quantise(key, head_dim, cache->kind, numbers);
    for (int64_t pair = 0; pair < head_dim / 2; pair++)
        memcpy(to + pair * 2 * GROUP, numbers + 2 * pair, 2);
}

/* Put a value into its slot. */
INLINE void store_value(const Cache *cache, int64_t head, int64_t slot, const bf16 *value, int64_t head_dim) {
    void *group = group_at(cache->values, cache, head, slot, head_dim);
    const int64_t first = slot % GROUP / 2 * 2 * LANES + slot % 2;
    uint8_t numbers[MAX_DIM];
    if (cache->kind != AS_THEY_ARE)
        cache->value_scales[head * cache->num_slots + slot] = quantise(value, head_dim, cache->kind, numbers);
    for (int64_t i = 0; i < head_dim; i++) {
        const int64_t at = first + i / LANES * LANES * GROUP + i % LANES * 2;
        if (cache->kind == AS_THEY_ARE)
            ((bf16 *)group)[at] = value[i];
        else
            ((uint8_t *)group)[at] = numbers[i];
    }
}
