/* Numbers of one byte as bfloat16, which holds all of them. */
#pragma once

#include <math.h>

#include "vectors.h"

enum Kind { AS_THEY_ARE, INT8, FP8 }; /* what elements are; fp8 has 4 bits of exponent and 3 of mantissa */

/* The values of fp8 without its sign, as bfloat16. */
typedef struct {
    __m512i parts[4]; /* of 32 each */
} Fp8Table;

INLINE Fp8Table fp8_table(void) {
    bf16 values[128];
    for (int code = 0; code < 128; code++) {
        const float value = code < 8 ? (float)code / 512.0f : ldexpf(1.0f + (float)(code % 8) / 8.0f, code / 8 - 7);
        values[code] = bf16_of(code == 127 ? NAN : value);
    }
    Fp8Table table;
    for (int i = 0; i < 4; i++)
        table.parts[i] = _mm512_loadu_si512(values + 32 * i);
    return table;
}

/* Write `count` numbers of one byte, a multiple of 32, as bfloat16, scales left out. */
INLINE void widen(const uint8_t *from, int64_t count, int64_t kind, const Fp8Table *table, bf16 *to) {
    for (int64_t i = 0; i < count; i += 32) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *)(from + i));
        __m512i wide;
        if (kind == INT8) {
            const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
            const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
            wide = rounded_pair(low, high);
        } else {
            const __m512i codes = _mm512_cvtepu8_epi16(bytes);
            const __m512i low = _mm512_permutex2var_epi16(table->parts[0], codes, table->parts[1]);
            const __m512i high = _mm512_permutex2var_epi16(table->parts[2], codes, table->parts[3]);
            const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
            const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(0x80)), 8);
            wide = _mm512_or_si512(_mm512_mask_mov_epi16(low, is_high, high), sign);
        }
        _mm512_storeu_si512(to + i, wide);
    }
}
