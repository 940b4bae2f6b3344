// Numbers of bf16, 32 and 16 at once, on processors with AVX-512, and what such a processor can do besides.

#pragma once

#include "../../attention/native/bf16.h"

#if X86
#include "../../attention/native/tile_unit.h"
#include "../../attention/native/vectors.h"
#endif

#include <algorithm>

namespace {

// What a processor can do, as `dunlin_level` tells it.
enum Level { NONE = 0, BF16 = 1, AMX = 2, AVX512 = 3 };

int level_of_processor() {
#if X86
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return NONE;
    if (!__builtin_cpu_supports("avx512bf16")) return AVX512;
    return may_use_tiles() ? AMX : BF16;
#else
    return NONE;
#endif
}

#if X86

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

// Before a loop of few turns over registers: a compiler that leaves it a loop leaves what it indexes in memory.
#define ALL_TURNS _Pragma("GCC unroll 8")

constexpr int BLOCK = 32;  // numbers that are multiplied at once

INLINE __mmask32 mask_of(int64_t left) { return left >= BLOCK ? 0xffffffffu : __mmask32((1u << left) - 1); }

constexpr int64_t padded(int64_t numbers) { return (numbers + BLOCK - 1) / BLOCK * BLOCK; }

INLINE __m512i load_some(const uint16_t *from, __mmask32 mask) { return _mm512_maskz_loadu_epi16(mask, from); }

// ---------------------------------------------------------------------------------------------- 32 numbers in fp32

// Numbers 0, 2, 4, ... and 1, 3, 5, ...: how 32 of bf16 widen without a shuffle.
struct Planes {
    __m512 even, odd;
};

INLINE Planes widen(__m512i bits) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(int(0xffff0000u))))};
}

// To the nearest number of bf16, as the upper half of each word; the lower half is undefined.
INLINE __m512i round_up16(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), last);
    const __mmask16 strange = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, strange, bits, _mm512_set1_epi32(0x400000));
}

INLINE __m512i narrow(Planes values) {
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(round_up16(values.even), 16), round_up16(values.odd));
}

INLINE Planes rounded(Planes values) { return widen(narrow(values)); }

// exp within 2 ulp; 0 below -87, infinite beyond 89.
INLINE __m512 exponential(__m512 x) {
    const __m512 limited = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(200.0f));
    const ExpParts parts = exp_parts(limited);
    const __m512 r = parts.r, p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(parts.p, r), r, r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, parts.n);
}

INLINE __m512 wide16(const uint16_t *from, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

INLINE void store16(uint16_t *to, __m512 value, __mmask16 mask) {
    _mm256_mask_storeu_epi16(to, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_up16(value), 16)));
}

INLINE __m512 rounded16(__m512 value) {
    return _mm512_castsi512_ps(_mm512_and_si512(round_up16(value), _mm512_set1_epi32(int(0xffff0000u))));
}

#endif

} // namespace
