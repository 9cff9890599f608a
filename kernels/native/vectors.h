/* AVX-512 helpers for bfloat16: sixteen at a time, arithmetic in float32, rounded to nearest even. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

typedef uint16_t bf16;

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load_bf16(const bf16 *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16));
}

/* The elements that a mask leaves; zeros in the places of others. */
INLINE __m512 load_some_bf16(const bf16 *from, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

INLINE __m256i rounded(__m512 x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i nearest = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000)); /* a NaN remains one */
    const __m512i either = _mm512_mask_mov_epi32(nearest, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(either, 16));
#endif
}

/* Sixteen and sixteen, as one vector. */
INLINE __m512i rounded_pair(__m512 low, __m512 high) {
#ifdef __AVX512BF16__
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
    return _mm512_inserti64x4(_mm512_castsi256_si512(rounded(low)), rounded(high), 1);
#endif
}

INLINE void store_some_bf16(bf16 *to, __mmask16 mask, __m512 x) {
    _mm256_mask_storeu_epi16(to, mask, rounded(x));
}

INLINE float float_of(bf16 x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE bf16 bf16_of(float x) {
    return (bf16)_mm256_extract_epi16(rounded(_mm512_set1_ps(x)), 0);
}

INLINE void store_bf16(bf16 *to, __m512 x) {
    _mm256_storeu_si256((__m256i *)to, rounded(x));
}

/* e**x by a polynomial in the fraction of x log2(e): exact enough for bfloat16 many times over; NaN stays NaN. What would be below 2**-125
 * is 0: numbers with fewer digits than others take a processor a hundred times as long. */
INLINE __m512 exp_ps(__m512 x) {
    const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), least = _mm512_set1_ps(-125.0f);
    /* The bound first: of two operands, min returns the second where one is NaN. */
    const __m512 bounded = _mm512_min_ps(_mm512_set1_ps(200.0f), scaled);
    const __m512 whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(bounded, whole);
    __m512 y = _mm512_set1_ps(1.5403530e-4f); /* (ln 2)**n / n!, from n = 6 down */
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.3333558e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.6181291e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.5504109e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.4022651e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.9314718e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(scaled, least, _CMP_NLT_UQ), y, whole);
}
