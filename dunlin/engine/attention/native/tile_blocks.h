// A block of keys in bf16 by the matrix unit of a processor with AMX. What it does once for all rows, packing keys and
// values, is worth it for many rows.

#pragma once

#include "avx512_blocks.h"
#include "tile_unit.h"

#if X86

namespace {

constexpr int TILED_ROWS = 64; // of a KV head, that a task should have

// A block's keys and values as tiles. Keys: pairs of a head's numbers by 16 keys. Values: pairs of keys by 16 of a head's
// numbers, in the order of `bf16_place`; what is beyond the last key is zero.
template <int NV> struct alignas(64) PackedBlock {
    uint32_t keys[BLOCK / TILE][NV][TILE * TILE], values[BLOCK / 32][2 * NV][TILE * TILE];
};

template <int NV> INLINE_TILES void pack_block(const HeadBlock &b, PackedBlock<NV> &packed) {
    for (int k = 0; k < b.count; k += TILE)
        for (int v = 0; v < NV; v++) {
            __m512i words[TILE];
            for (int i = 0; i < TILE; i++) words[i] = _mm512_loadu_si512(b.keys[k + i] + b.key_offset + 64 * v);
            transpose16(words);
            for (int i = 0; i < TILE; i++) _mm512_store_si512(packed.keys[k / TILE][v] + i * TILE, words[i]);
        }
    const int pairs = (b.count + 1) / 2, last = (pairs + TILE - 1) / TILE * TILE;
    for (int pair = 0; pair < last; pair++)
        for (int v = 0; v < NV; v++) {
            __m512i x = _mm512_setzero_si512(), y = x;
            if (pair < pairs) {
                x = _mm512_loadu_si512(b.keys[2 * pair] + b.value_offset + 64 * v);
                y = _mm512_loadu_si512(b.keys[2 * pair + 1] + b.value_offset + 64 * v);
            }
            uint32_t(*to)[TILE * TILE] = packed.values[pair / TILE] + 2 * v;
            _mm512_store_si512(to[0] + pair % TILE * TILE, _mm512_unpacklo_epi16(x, y));
            _mm512_store_si512(to[1] + pair % TILE * TILE, _mm512_unpackhi_epi16(x, y));
        }
}

// Scores of up to 16 rows from `r` on; the tiles have their shapes.
template <int NV> INLINE_TILES void score_tiles(const HeadBlock &b, int r, const PackedBlock<NV> &packed) {
    const char *query = b.query + size_t(r) * NV * 64;
    float *scores = b.scores + r * BLOCK;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int v = 0; v < NV; v++) {
        _tile_loadd(4, query + 64 * v, NV * 64);
        _tile_loadd(6, packed.keys[0][v], TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if (b.count > 16) {
            _tile_loadd(7, packed.keys[1][v], TILE_BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (b.count > 32) {
            _tile_loadd(6, packed.keys[2][v], TILE_BYTES);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (b.count > 48) {
            _tile_loadd(7, packed.keys[3][v], TILE_BYTES);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, scores, 4 * BLOCK);
    _tile_stored(1, scores + 16, 4 * BLOCK);
    _tile_stored(2, scores + 32, 4 * BLOCK);
    _tile_stored(3, scores + 48, 4 * BLOCK);
}

// Mixes values into up to 16 rows from `r` on, 32 numbers of a head at once.
template <int NV>
INLINE_TILES void mix_tiles(const HeadBlock &b, int r, const uint32_t *shares, const PackedBlock<NV> &packed) {
    float *mixed = b.mixed + size_t(r) * NV * 32;
    constexpr int STEP = NV * 32 * 4;
    const bool is_long = b.count > 32;
    _tile_loadd(4, shares + r * (BLOCK / 2), 2 * BLOCK);
    if (is_long) _tile_loadd(5, shares + r * (BLOCK / 2) + TILE, 2 * BLOCK);
    for (int v = 0; v < NV; v++) {
        _tile_loadd(0, mixed + 32 * v, STEP);
        _tile_loadd(1, mixed + 32 * v + 16, STEP);
        _tile_loadd(6, packed.values[0][2 * v], TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, packed.values[0][2 * v + 1], TILE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        if (is_long) {
            _tile_loadd(6, packed.values[1][2 * v], TILE_BYTES);
            _tile_dpbf16ps(0, 5, 6);
            _tile_loadd(7, packed.values[1][2 * v + 1], TILE_BYTES);
            _tile_dpbf16ps(1, 5, 7);
        }
        _tile_stored(0, mixed + 32 * v, STEP);
        _tile_stored(1, mixed + 32 * v + 16, STEP);
    }
}

// Calls `compute(row)` for each 16 rows, and for those that are left.
template <typename Compute> INLINE_TILES void for_tiles(int rows, const Compute &compute) {
    if (rows >= TILE) take_shapes(TileShapes(TILE));
    for (int r = 0; r < rows; r += TILE) {
        if (r + TILE > rows) take_shapes(TileShapes(rows - r));
        compute(r);
    }
}

template <int NV> TARGET_TILES void amx_bf16(const HeadBlock &b) {
    if (b.rows < FOLDED) return avx512_bf16<NV>(b);
    PackedBlock<NV> packed;
    pack_block(b, packed);
    if (b.next) prefetch_head(b, 0, b.next_count);
    for_tiles(b.rows, [&](int r) TARGET_TILES { score_tiles<NV>(b, r, packed); });
    settle();
    alignas(64) uint32_t shares[MOST_ROWS * (BLOCK / 2)];
    float kept[MOST_ROWS];
    take_shares(b, shares, kept);
    for (int r = 0; r < b.rows; r++) {
        if (b.count % 32) // what a tile has beyond the last key
            for (int k = (b.count + 15) / 16 * 16; k < (b.count + 31) / 32 * 32; k += 16)
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(shares + r * (BLOCK / 2) + k / 2), _mm256_setzero_si256());
        if (kept[r] == 1.0f) continue;
        float *mixed = b.mixed + size_t(r) * NV * 32;
        for (int v = 0; v < 2 * NV; v++)
            _mm512_storeu_ps(mixed + 16 * v, _mm512_mul_ps(_mm512_loadu_ps(mixed + 16 * v), _mm512_set1_ps(kept[r])));
    }
    for_tiles(b.rows, [&](int r) TARGET_TILES { mix_tiles<NV>(b, r, shares, packed); });
    settle();
    _tile_release();
}

} // namespace

#endif
