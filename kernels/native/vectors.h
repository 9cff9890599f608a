/* AVX-512 helpers for bfloat16: sixteen at a time, arithmetic in float32, rounded to nearest even. */
#pragma once

#include <immintrin.h>
#include <stdint.h>

typedef uint16_t bf16;

#define LANES 16
#define LINE 64 /* bytes of a line of the processor's cache */
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

#define LOG2_E 1.44269504f

/* 2**x by a polynomial in the fraction of x, for x of at most 126: within 3e-6 of itself, and 1 at 0. NaN stays NaN. What
 * would be below 2**-125 is 0: numbers with fewer digits than others take a processor a hundred times as long. */
INLINE __m512 exp2_ps(__m512 x) {
    const __m512 large = _mm512_set1_ps(12582912.0f); /* with it, what is left in the lowest bits are whole numbers */
    const __m512 shifted = _mm512_add_ps(x, large), f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, large));
    __m512 y = _mm512_set1_ps(9.58284554e-3f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.59064443e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.40240989e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.93124191e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    const __mmask16 is_seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(is_seen, _mm512_castps_si512(y), exponent));
}

/* e**x, at most 2**126. */
INLINE __m512 exp_ps(__m512 x) {
    /* The bound first: of two operands, min returns the second where one is NaN. */
    return exp2_ps(_mm512_min_ps(_mm512_set1_ps(126.0f), _mm512_mul_ps(x, _mm512_set1_ps(LOG2_E))));
}

/* 1 / x, for x between 1 and 2**126. */
INLINE __m512 reciprocal_ps(__m512 x) {
    const __m512 near = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(near, _mm512_fnmadd_ps(x, near, _mm512_set1_ps(2.0f)));
}

INLINE __m512 either_ps(__m512 a, __m512 b, const int is_sum) {
    return is_sum ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}

/* The sums, or the greatest numbers, of sixteen vectors; the vectors are lost. */
INLINE __m512 across_ps(__m512 of[LANES], const int is_sum) {
    for (int i = 0; i < 8; i++) {
        const __m512 a = of[2 * i], b = of[2 * i + 1];
        of[i] = either_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b), is_sum);
    }
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(of[2 * i]), b = _mm512_castps_pd(of[2 * i + 1]);
        of[i] = either_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)), is_sum);
    }
    for (int num = 2; num; num /= 2) /* each quarter has those of four vectors now */
        for (int i = 0; i < num; i++) {
            const __m512 a = of[2 * i], b = of[2 * i + 1];
            of[i] = either_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd), is_sum);
        }
    return of[0];
}
