// A block of keys in bf16 by the matrix unit of a processor with AMX. What it does once for all rows, packing keys and
// values, is worth it for many rows.

#pragma once

#include "avx512_blocks.h"
#include "tile_unit.h"

#if X86

namespace {

constexpr int TILED_ROWS = 128; // of a KV head, that a task should have

// A block's keys and values as tiles. Keys: pairs of a head's numbers by 16 keys. Values: pairs of keys by 16 of a head's
// numbers, in the order of `mix_tile`; what is beyond the last key is zero.
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

// Highest scores of up to 16 rows from `r` on, with those of earlier blocks; none of a row that saw no key yet.
INLINE_TILES __m512 highest_of(const HeadBlock &b, int r, int count, __m512 earlier) {
    __m512 tops[TILE];
    __mmask16 strange = 0;
    for (int i = 0; i < TILE; i++) {
        tops[i] = _mm512_set1_ps(NOTHING);
        __mmask16 none = 0;
        for (int at = 0; i < count && at < b.count; at += 16) {
            const __m512 held = seen_scores(b, r + i, at);
            _mm512_storeu_ps(b.scores + (r + i) * BLOCK + at, held);
            tops[i] = _mm512_max_ps(tops[i], held);
            none |= _mm512_cmp_ps_mask(held, held, _CMP_UNORD_Q);
        }
        strange |= __mmask16((none != 0) << i);
    }
    const __m512 highest = _mm512_max_ps(fold16<Greater>(tops), earlier);
    return _mm512_mask_mov_ps(highest, strange, _mm512_set1_ps(std::nanf("")));
}

// Shares of up to 16 rows from `r` on, rounded to bf16, zero up to a tile's end; what the rows' earlier results are worth
// now goes into these and into their sums. The sum is of what is mixed: rounded shares.
template <int NV> INLINE_TILES void share_rows(const HeadBlock &b, int r, int count, uint32_t *shares) {
    const __mmask16 rows = __mmask16(0xffffu >> (TILE - count));
    const __m512 earlier = _mm512_mask_loadu_ps(_mm512_set1_ps(NOTHING), rows, b.high + r), highest = highest_of(b, r, count, earlier);
    const __mmask16 blind = _mm512_cmp_ps_mask(highest, _mm512_set1_ps(NOTHING), _CMP_EQ_OQ);
    const __m512 kept = _mm512_mask_mov_ps(exp512(_mm512_sub_ps(earlier, highest)), blind, _mm512_set1_ps(1.0f));
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    alignas(64) float tops[TILE], worth[TILE];
    _mm512_store_ps(tops, _mm512_mask_mov_ps(highest, blind, _mm512_setzero_ps()));
    _mm512_store_ps(worth, kept);
    __m512 totals[TILE];
    for (int i = 0; i < TILE; i++) {
        totals[i] = _mm512_setzero_ps();
        if (i >= count) continue;
        const __m512 top = _mm512_set1_ps(tops[i]);
        uint32_t *to = shares + (r + i) * (BLOCK / 2);
        for (int at = 0; at < b.count; at += 16) {
            const __m512 below = _mm512_sub_ps(_mm512_loadu_ps(b.scores + (r + i) * BLOCK + at), top);
            const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(power_of_two(_mm512_mul_ps(below, log2e)));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + at / 2), rounded);
            totals[i] = _mm512_add_ps(totals[i], _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
        }
        if ((b.count - 1) % 32 < 16)
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + (b.count + 15) / 16 * 8), _mm256_setzero_si256());
        if (worth[i] == 1.0f) continue;
        float *mixed = b.mixed + size_t(r + i) * NV * 32;
        for (int v = 0; v < 2 * NV; v++)
            _mm512_storeu_ps(mixed + 16 * v, _mm512_mul_ps(_mm512_loadu_ps(mixed + 16 * v), _mm512_set1_ps(worth[i])));
    }
    const __m512 sums = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(rows, b.sum + r), kept, fold16<Add>(totals));
    _mm512_mask_storeu_ps(b.sum + r, rows, sums);
    _mm512_mask_storeu_ps(b.high + r, rows, highest);
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
    for_tiles(b.rows, [&](int r) TARGET_TILES { score_tiles<NV>(b, r, packed); });
    settle();
    alignas(64) uint32_t shares[MOST_ROWS * (BLOCK / 2)];
    for (int r = 0; r < b.rows; r += TILE) share_rows<NV>(b, r, std::min(TILE, b.rows - r), shares);
    for_tiles(b.rows, [&](int r) TARGET_TILES { mix_tiles<NV>(b, r, shares, packed); });
    settle();
    _tile_release();
}

} // namespace

#endif
