// Single numbers of bf16, on any processor, and whether this one is an x86.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#define X86 1
#else
#define X86 0
#endif

#define INLINE_ANY static inline __attribute__((always_inline))

namespace {

INLINE_ANY float from_bf16(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

INLINE_ANY uint16_t to_bf16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    if ((wide & 0x7fffffff) > 0x7f800000) return uint16_t((wide >> 16) | 64);
    return uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

} // namespace
