// The first place of the greatest of many numbers in bf16.

#pragma once

#include "bf16_rows.h"

namespace {

#if X86

// Numbers of bf16 as integers in their order; -0 is 0, as it is in a comparison.
INLINE __m512i in_order(__m512i bits) {
    const __m512i magnitude = _mm512_and_si512(_mm512_srai_epi16(bits, 15), _mm512_set1_epi16(0x7fff));
    const __mmask32 zero = _mm512_cmpeq_epi16_mask(bits, _mm512_set1_epi16(int16_t(0x8000)));
    return _mm512_mask_mov_epi16(_mm512_xor_si512(bits, magnitude), zero, _mm512_setzero_si512());
}

constexpr int16_t INFINITE = 0x7f80, LEAST = int16_t(0x807f); // in order: infinity, and what is the opposite
constexpr int16_t LEAST_BITS = int16_t(0xff80);

// The first place of the greatest of `count` numbers; -1 if one is none, or the greatest is infinite.
TARGET int64_t first_greatest(const uint16_t *numbers, int64_t count) {
    const auto load = [&](int64_t at) TARGET __attribute__((always_inline)) {
        return _mm512_mask_loadu_epi16(_mm512_set1_epi16(LEAST_BITS), mask_of(count - at), numbers + at);
    };
    __m512i most = _mm512_set1_epi16(LEAST);
    __mmask32 strange = 0;
    for (int64_t at = 0; at < count; at += BLOCK) {
        const __m512i bits = load(at);
        strange |= _mm512_cmpgt_epi16_mask(_mm512_and_si512(bits, _mm512_set1_epi16(0x7fff)), _mm512_set1_epi16(INFINITE));
        most = _mm512_max_epi16(most, in_order(bits));
    }
    alignas(64) int16_t lanes[BLOCK];
    _mm512_store_si512(lanes, most);
    const int16_t greatest = *std::max_element(lanes, lanes + BLOCK);
    if (strange || greatest >= INFINITE || greatest <= LEAST) return -1;
    for (int64_t at = 0;; at += BLOCK)
        if (const __mmask32 found = _mm512_cmpeq_epi16_mask(in_order(load(at)), _mm512_set1_epi16(greatest)))
            return at + __builtin_ctz(found);
}

#endif

} // namespace
