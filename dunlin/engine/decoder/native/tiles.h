// Products by the matrix unit of a processor with AMX: two tiles of 16 columns by two panels of 16 rows at once.
//
// A tile of weights is 16 columns as they lie, so weights need no other layout. The rows are packed: a panel holds, pair of
// inputs after pair, those of its 16 rows side by side. So a tile of results has a column in each line, and is turned
// before it is stored. A result's bits depend on its own row and column alone: every sum is over the inputs in order.

#pragma once

#include "../../attention/native/room.h"
#include "bf16_numbers.h"

namespace {

#if X86

// Numbers of so many rows, packed.
constexpr int64_t packed_items(int64_t rows, int64_t inputs) { return (rows + TILE - 1) / TILE * TILE * padded(inputs); }

// Packs `count` rows, at most 16 and `stride` numbers apart, into their panel: inputs [from, to), from a multiple of `BLOCK`
// on. Zeros follow up to the next multiple, and are the rows that are not there.
INLINE void pack_panel(const uint16_t *rows, int64_t stride, int64_t count, int64_t from, int64_t to, uint16_t *panel) {
    for (int64_t at = from; at < to; at += BLOCK) {
        __m512i words[TILE];
        const __mmask32 mask = mask_of(to - at);
        for (int i = 0; i < TILE; i++)
            words[i] = i < count ? load_some(rows + i * stride + at, mask) : _mm512_setzero_si512();
        transpose16(words);
        for (int i = 0; i < TILE; i++) _mm512_storeu_si512(panel + at * TILE + i * BLOCK, words[i]);
    }
}

// The same of any number of rows, which have `inputs` in all.
INLINE void pack_rows(const uint16_t *rows, int64_t stride, int64_t count, int64_t from, int64_t to, int64_t inputs,
                      uint16_t *packed) {
    for (int64_t row = 0; row < count; row += TILE)
        pack_panel(rows + row * stride, stride, std::min<int64_t>(TILE, count - row), from, to, packed + row * padded(inputs));
}

// out[count, columns] = packed rows @ weight[columns, inputs]^T + bias + residual, rounded before the residual is added, and
// again. Rows of the result and of the residual are `out_stride` numbers apart; bias and residual may be null. A pass over
// some of the inputs adds to `sums`, [column][row] with both up to a multiple of 32; the last one writes the result.
struct TileProduct {
    const uint16_t *packed, *weight, *bias, *residual;
    uint16_t *out;
    int64_t count, inputs, out_stride;
    int64_t weight_stride; // numbers from a column's weights to the next one's
    float *sums = nullptr; // null: there is one pass
    bool is_first = true, is_last = true;
};

// Adds what 32 inputs make: of one or two tiles of weights, `step` bytes from line to line, and of one or two panels, which
// pass by while weights stay in the first cache. Panels begin with a cache line, or each line of a tile would be two.
template <bool TWO_TILES, bool TWO_PANELS>
INLINE_TILES void add_tiles(const uint16_t *weight, const uint16_t *other, int64_t step, const uint16_t *panel,
                            const uint16_t *more) {
    _tile_loadd(4, weight, step);
    if constexpr (TWO_TILES) _tile_loadd(5, other, step);
    _tile_stream_loadd(6, panel, TILE_BYTES);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (TWO_TILES) _tile_dpbf16ps(2, 5, 6);
    if constexpr (TWO_PANELS) {
        _tile_stream_loadd(7, more, TILE_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (TWO_TILES) _tile_dpbf16ps(3, 5, 7);
    }
}

// A tile of the inputs beyond the last whole `BLOCK`, with zeros behind them: it would read the next column's, or what is no
// weight.
INLINE void take_rest(const TileProduct &p, const uint16_t *weight, int64_t at, int columns, uint16_t *tile) {
    const __mmask32 mask = mask_of(p.inputs - at);
    for (int column = 0; column < columns; column++)
        _mm512_store_si512(tile + column * BLOCK, load_some(weight + column * p.weight_stride + at, mask));
}

// What inputs [from, to) add to `sums` [tile of weights, panel][column, row], from `row` and `column` on; `from` is a multiple
// of `BLOCK`, and 0 of the first pass begins them. Nothing is fetched ahead: that is slower, for the processor does it by itself, and the next
// columns are another thread's as often as not.
template <bool TWO_TILES, bool TWO_PANELS>
INLINE_TILES void multiply_tiles(const TileProduct &p, int64_t row, int64_t column, int columns, int64_t from, int64_t to,
                                 float (*sums)[TILE * TILE]) {
    const uint16_t *weight = p.weight + column * p.weight_stride, *other = weight + TILE * p.weight_stride;
    const uint16_t *panel = p.packed + row * padded(p.inputs), *more = panel + TILE * padded(p.inputs);
    settle();
    if (p.is_first && !from) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, sums[0], TILE_BYTES);
        if constexpr (TWO_PANELS) _tile_loadd(1, sums[1], TILE_BYTES);
        if constexpr (TWO_TILES) _tile_loadd(2, sums[2], TILE_BYTES);
        if constexpr (TWO_TILES && TWO_PANELS) _tile_loadd(3, sums[3], TILE_BYTES);
    }
    int64_t at = from;
    for (; at + BLOCK <= to; at += BLOCK)
        add_tiles<TWO_TILES, TWO_PANELS>(weight + at, other + at, 2 * p.weight_stride, panel + at * TILE, more + at * TILE);
    if (at < to) {
        alignas(64) uint16_t rest[2][TILE * BLOCK];
        take_rest(p, weight, at, columns, rest[0]);
        if constexpr (TWO_TILES) take_rest(p, other, at, columns, rest[1]);
        settle();
        add_tiles<TWO_TILES, TWO_PANELS>(rest[0], rest[1], TILE_BYTES, panel + at * TILE, more + at * TILE);
    }
    _tile_stored(0, sums[0], TILE_BYTES);
    if constexpr (TWO_PANELS) _tile_stored(1, sums[1], TILE_BYTES);
    if constexpr (TWO_TILES) _tile_stored(2, sums[2], TILE_BYTES);
    if constexpr (TWO_TILES && TWO_PANELS) _tile_stored(3, sums[3], TILE_BYTES);
}

// `sums` [column][row], rounded: two columns' of each row side by side, in `pairs` [column / 2].
INLINE_TILES void round_pairs(const TileProduct &p, int64_t column, int columns, const float *sums, __m512i *pairs) {
    const __m512i apart = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int i = 0; i < TILE; i += 2) {
        __m512 one = _mm512_load_ps(sums + i * TILE), two = _mm512_load_ps(sums + (i + 1) * TILE);
        if (p.bias && i < columns) {
            one = _mm512_add_ps(one, _mm512_set1_ps(from_bf16(p.bias[column + i])));
            two = _mm512_add_ps(two, _mm512_set1_ps(i + 1 < columns ? from_bf16(p.bias[column + i + 1]) : 0.0f));
        }
        pairs[i / 2] = _mm512_permutexvar_epi16(apart, (__m512i)_mm512_cvtne2ps_pbh(two, one));
    }
}

// Eight vectors of 16 pairs to 16 rows of eight pairs, two in each of `rows`: row i is half i % 2 of `rows[i / 2]`.
INLINE_TILES void turn_pairs(const __m512i *pairs, __m512i *rows) {
    __m512i twos[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        twos[i] = _mm512_unpacklo_epi32(pairs[i], pairs[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(pairs[i], pairs[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int side = 0; side < 2; side++) {
            fours[i + 2 * side] = _mm512_unpacklo_epi64(twos[i + side], twos[i + 2 + side]);
            fours[i + 2 * side + 1] = _mm512_unpackhi_epi64(twos[i + side], twos[i + 2 + side]);
        }
    // fours[c] and fours[4 + c] hold the first and the last four pairs of rows c, 4 + c, 8 + c and 12 + c.
    const __m512i low = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0), high = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    for (int c = 0; c < 4; c++) {
        rows[c] = _mm512_permutex2var_epi64(fours[c], low, fours[4 + c]);      // rows c, 4 + c
        rows[4 + c] = _mm512_permutex2var_epi64(fours[c], high, fours[4 + c]); // rows 8 + c, 12 + c
    }
}

// `sums` [column][row] into the result, from `row` and `column` on.
INLINE_TILES void put_turned(const TileProduct &p, int64_t row, int64_t column, int columns, const float *sums) {
    __m512i pairs[8], rows[8];
    round_pairs(p, column, columns, sums, pairs);
    turn_pairs(pairs, rows);
    const int count = int(std::min<int64_t>(TILE, p.count - row));
    const __mmask16 mask = __mmask16(mask_of(columns));
    for (int i = 0; i < 8; i++)
        for (int half = 0; half < 2; half++) {
            const int at = i % 4 + i / 4 * 8 + 4 * half;
            if (at >= count) continue;
            __m256i bits = half ? _mm512_extracti64x4_epi64(rows[i], 1) : _mm512_castsi512_si256(rows[i]);
            const int64_t place = (row + at) * p.out_stride + column;
            if (p.residual) {
                const __m512 value = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
                bits = (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(value, wide16(p.residual + place, mask)));
            }
            _mm256_mask_storeu_epi16(p.out + place, mask, bits);
        }
}

// One or two panels of rows from `row` on against one or two tiles of `columns` columns, in inputs [from, to).
template <bool TWO_TILES, bool TWO_PANELS>
TARGET_TILES void panels_of_tiles(const TileProduct &p, int64_t row, int64_t column, int columns, int64_t from, int64_t to,
                                  float (*sums)[TILE * TILE]) {
    multiply_tiles<TWO_TILES, TWO_PANELS>(p, row, column, columns, from, to, sums);
    if (to < p.inputs || !p.is_last) return;
    for (int tile = 0; tile < (TWO_TILES ? 2 : 1); tile++)
        for (int panel = 0; panel < (TWO_PANELS ? 2 : 1); panel++)
            put_turned(p, row + panel * TILE, column + tile * TILE, columns, sums[2 * tile + panel]);
}

constexpr int64_t TILE_DEPTH = 512; // inputs of two tiles of weights that stay in the first cache while rows pass

// All rows against one or two tiles.
template <bool TWO_TILES> TARGET_TILES void rows_of_tiles(const TileProduct &p, int64_t column, int columns) {
    static thread_local Room<float> room;
    const int64_t parts = p.count > 2 * TILE ? (p.inputs + TILE_DEPTH - 1) / TILE_DEPTH : 1;
    const int64_t depth = padded((p.inputs + parts - 1) / parts), step = parts == 1 && !p.sums ? 0 : TWO_TILES ? 4 : 2;
    float *kept = p.sums ? p.sums + column * padded(p.count) : room.of(size_t((p.count + 2 * TILE) * 2 * TILE));
    auto *all = reinterpret_cast<float(*)[TILE * TILE]>(kept);
    for (int64_t at = 0; at < p.inputs; at += depth) {
        const int64_t end = std::min(at + depth, p.inputs);
        float(*sums)[TILE * TILE] = all;
        int64_t row = 0;
        for (; row + TILE < p.count; row += 2 * TILE, sums += step)
            panels_of_tiles<TWO_TILES, true>(p, row, column, columns, at, end, sums);
        if (row < p.count) panels_of_tiles<TWO_TILES, false>(p, row, column, columns, at, end, sums);
    }
}

// All rows in columns [from, to): the weights come from memory once.
TARGET_TILES void columns_by_tiles(const TileProduct &p, int64_t from, int64_t to) {
    take_shapes(TileShapes(TILE));
    int64_t column = from;
    for (; column + 2 * TILE <= to; column += 2 * TILE) rows_of_tiles<true>(p, column, TILE);
    for (; column < to; column += TILE) {
        const int columns = int(std::min<int64_t>(TILE, to - column));
        take_shapes(TileShapes(columns));
        rows_of_tiles<false>(p, column, columns);
    }
    _tile_release();
}

#endif

} // namespace
