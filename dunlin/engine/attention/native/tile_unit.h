// The matrix unit of a processor with AMX: permission to use it, and how its tiles are shaped here.

#pragma once

#if defined(__x86_64__)

#include <cstdint>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TARGET_TILES \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,amx-tile,amx-bf16")))
#define INLINE_TILES static inline __attribute__((always_inline)) TARGET_TILES

namespace {

constexpr int TILE = 16;       // lines of a tile, and numbers in fp32 of a line
constexpr int TILE_BYTES = 64; // of a line

// Whether this process may use the matrix unit: Linux lends it to those that ask, once.
bool may_use_tiles() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool granted =
        __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return granted;
}

// What was written is in memory from here on: the compiler does not know what a tile's loads read.
static inline __attribute__((always_inline)) void settle() { asm volatile("" ::: "memory"); }

// Tiles 0 to 3 are results, 4 and 5 have `lines` lines of what lies line by line, 6 and 7 are packed.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_line = 0, reserved[14] = {};
    uint16_t line_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t lines[16] = {};

    explicit TileShapes(int count) {
        for (int tile = 0; tile < 8; tile++) lines[tile] = uint8_t(tile < 6 ? count : TILE);
    }
};

INLINE_TILES void take_shapes(const TileShapes &shapes) {
    settle();
    _tile_loadconfig(&shapes);
}

} // namespace

#endif
