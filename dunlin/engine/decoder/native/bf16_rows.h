// Products, norms and gates of rows in bf16, for processors with AVX-512; sums are fp32. What is shared by the kernels of
// this folder.
//
// A product comes in three ways of multiplying: `Dot` by AVX-512 BF16's dot products of pairs, `Fused` by AVX-512's fused
// multiply-add on numbers widened to fp32, which takes twice the instructions, `Tiles` by AMX. Each takes the rows in a form
// of its own (`GivenRows`), in which they are multiplied by many columns; weights are as they lie in memory.
//
// Functions are compiled for the first two: the target allows AVX-512 BF16 throughout, and only `Dot` has its instructions, for a
// compiler makes none of them from code without `__bf16`.

#pragma once

#include "tiles.h"

#include <atomic>
#include <cmath>
#include <cstring>

extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {

#if X86

constexpr int COLUMNS = 4; // of a product that are computed at once

// From one row that is multiplied to the next: a line more, or rows of 4 KB would all be in the same places of a cache.
constexpr int64_t stride_of(int64_t numbers) { return padded(numbers) + BLOCK; }

// ---------------------------------------------------------------------------------------------- ways of multiplying

struct Dot {
    static constexpr bool IS_PACKED = false;
    using Item = uint16_t;
    using Weight = __m512i;
    using Given = __m512i;
    static constexpr int ROWS = 6; // that are computed at once: what fits the registers
    static constexpr int64_t UNIT = COLUMNS; // of a task's columns
    static constexpr int64_t TASK_BYTES = 32768; // of weights: small, for a thread may be late
    INLINE Weight weight(__m512i bits) { return bits; }
    INLINE Given given(const Item *from) { return _mm512_loadu_si512(from); }
    INLINE __m512 add(__m512 total, Given x, Weight w) { return _mm512_dpbf16_ps(total, (__m512bh)x, (__m512bh)w); }
    INLINE void put(Item *to, __m512i bits) { _mm512_storeu_si512(to, bits); }
};

struct Fused {
    static constexpr bool IS_PACKED = false;
    using Item = float;
    using Weight = Planes;
    using Given = Planes;
    static constexpr int ROWS = 5;
    static constexpr int64_t UNIT = COLUMNS;
    static constexpr int64_t TASK_BYTES = 32768;
    INLINE Weight weight(__m512i bits) { return widen(bits); }
    INLINE Given given(const Item *from) { return {_mm512_loadu_ps(from), _mm512_loadu_ps(from + 16)}; }
    INLINE __m512 add(__m512 total, Given x, Weight w) {
        return _mm512_fmadd_ps(x.odd, w.odd, _mm512_fmadd_ps(x.even, w.even, total));
    }
    INLINE void put(Item *to, __m512i bits) {
        const Planes wide = widen(bits);
        _mm512_storeu_ps(to, wide.even);
        _mm512_storeu_ps(to + 16, wide.odd);
    }
};

// What is not a product with weights is computed as with `Dot`.
struct Tiles : Dot {
    static constexpr bool IS_PACKED = true;
    static constexpr int64_t UNIT = 2 * TILE;
    static constexpr int64_t TASK_BYTES = 131072; // the first ones of a task come slowly
};

// Rows that are multiplied: as they are written, `stride_of(inputs)` items apart, with zeros up to `padded(inputs)`; and as
// they are taken, packed where their way wants it.
template <class I> struct GivenRows {
    typename I::Item *rows, *taken;
    int64_t count, inputs;

    static constexpr int64_t items(int64_t count, int64_t inputs) {
        return count * stride_of(inputs) + (I::IS_PACKED ? packed_items(count, inputs) : 0);
    }
    GivenRows() = default;
    GivenRows(typename I::Item *room, int64_t count, int64_t inputs)
        : rows(room), taken(I::IS_PACKED ? room + count * stride_of(inputs) : room), count(count), inputs(inputs) {}

    typename I::Item *row(int64_t at) const { return rows + at * stride_of(inputs); }
    // How many tasks it is to pack them whole: one for each panel, for panels share no cache lines.
    int64_t panels() const { return I::IS_PACKED ? (count + TILE - 1) / TILE : 0; }
};

// Packs inputs [from, to) of rows [first, last), where their way wants it; `first` is that of a panel.
template <class I>
INLINE void pack(const GivenRows<I> &given, int64_t first, int64_t last, int64_t from, int64_t to) {
    if constexpr (I::IS_PACKED)
        pack_rows(given.row(first), stride_of(given.inputs), last - first, from, to, given.inputs,
                  given.taken + first * padded(given.inputs));
}

// ---------------------------------------------------------------------------------------------- products

// out[count, columns] = given @ weight[columns, inputs]^T + bias + residual, of `GivenRows::taken`. A result is rounded before the
// residual is added, and again. Bias and residual may be null.
template <class I> struct Product {
    const typename I::Item *given;
    const uint16_t *weight, *bias, *residual;
    uint16_t *out;
    int64_t count, columns, inputs;
};

// The four vectors' sums.
INLINE __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

INLINE __m128 load4(const uint16_t *from) {
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)from)), 16));
}

// Four numbers rounded to bf16, each in the lower half of its word.
INLINE __m128i round4(__m128 value) {
    const __m128i bits = _mm_castps_si128(value);
    const __m128i last = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7fff)), last);
    const __mmask8 strange = _mm_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm_srli_epi32(_mm_mask_or_epi32(rounded, strange, bits, _mm_set1_epi32(0x400000)), 16);
}

template <class I> INLINE void put4(const Product<I> &p, int64_t row, int64_t column, __m128 value) {
    if (p.bias) value = _mm_add_ps(value, load4(p.bias + column));
    __m128i bits = round4(value);
    if (p.residual)
        bits = round4(_mm_add_ps(_mm_castsi128_ps(_mm_slli_epi32(bits, 16)), load4(p.residual + row * p.columns + column)));
    _mm_storel_epi64((__m128i *)(p.out + row * p.columns + column), _mm_packus_epi32(bits, bits));
}

// `ROWS` rows from `first` against columns [column, column + 4). `ahead`: what to read towards the caches meanwhile,
// `AHEAD` lines with every block, to the second cache: it has more reads on their way at once than the first.
template <class I, int ROWS, int AHEAD>
INLINE void tile(const Product<I> &p, int64_t first, int64_t column, const char *ahead) {
    const int64_t stride = stride_of(p.inputs);
    const uint16_t *weight = p.weight + column * p.inputs;
    const typename I::Item *given = p.given + first * stride;
    __m512 total[ROWS][COLUMNS];
    ALL_TURNS for (int r = 0; r < ROWS; r++)
        ALL_TURNS for (int c = 0; c < COLUMNS; c++) total[r][c] = _mm512_setzero_ps();
    const auto add = [&](int64_t at, __mmask32 mask) TARGET __attribute__((always_inline)) {
        typename I::Weight w[COLUMNS];
        ALL_TURNS for (int c = 0; c < COLUMNS; c++) w[c] = I::weight(load_some(weight + c * p.inputs + at, mask));
        ALL_TURNS for (int r = 0; r < ROWS; r++) {
            const typename I::Given x = I::given(given + r * stride + at);
            ALL_TURNS for (int c = 0; c < COLUMNS; c++) total[r][c] = I::add(total[r][c], x, w[c]);
        }
    };
    int64_t at = 0;
    for (; at + BLOCK <= p.inputs; at += BLOCK) {
        for (int line = 0; line < AHEAD; line++) _mm_prefetch(ahead + line * 64, _MM_HINT_T1);
        ahead += AHEAD * 64;
        add(at, 0xffffffffu);
    }
    if (at < p.inputs) add(at, mask_of(p.inputs - at));
    ALL_TURNS for (int r = 0; r < ROWS; r++)
        put4(p, first + r, column, sums(total[r][0], total[r][1], total[r][2], total[r][3]));
}

template <class I, int AHEAD>
INLINE void some_rows(const Product<I> &p, int64_t row, int rows, int64_t column, const char *ahead) {
    switch (rows) {
    case 6: return tile<I, I::ROWS, AHEAD>(p, row, column, ahead);
    case 5: return tile<I, 5, AHEAD>(p, row, column, ahead);
    case 4: return tile<I, 4, AHEAD>(p, row, column, ahead);
    case 3: return tile<I, 3, AHEAD>(p, row, column, ahead);
    case 2: return tile<I, 2, AHEAD>(p, row, column, ahead);
    case 1: return tile<I, 1, AHEAD>(p, row, column, ahead);
    }
}

constexpr int64_t AHEAD_BYTES = 10240; // of weights that are on their way, at least: fewer are computed before they come

INLINE int64_t groups_ahead(int64_t inputs) {
    const int64_t group = 2 * COLUMNS * inputs;
    return (AHEAD_BYTES + group - 1) / group;
}

// Rows [from, to), in tiles of about the same number, while the next columns' weights come nearer.
template <class I> TARGET void rows_of_columns(const Product<I> &p, int64_t from, int64_t to, int64_t column) {
    const int64_t tiles = (to - from + I::ROWS - 1) / I::ROWS, least = (to - from) / tiles, more = (to - from) % tiles;
    const char *ahead = reinterpret_cast<const char *>(p.weight + (column + groups_ahead(p.inputs) * COLUMNS) * p.inputs);
    const int64_t share = from ? 0 : p.inputs * 2 * COLUMNS; // bytes
    int64_t row = from;
    for (int64_t i = 0; i < tiles; i++) {
        const int rows = int(least + (i < more));
        if (!share || i >= COLUMNS) some_rows<I, 0>(p, row, rows, column, ahead);
        else if (tiles == 1) some_rows<I, 4>(p, row, rows, column, ahead);
        else if (tiles < 4) some_rows<I, 2>(p, row, rows, column, ahead + i * share / 2);
        else some_rows<I, 1>(p, row, rows, column, ahead + i * share / 4);
        row += rows;
    }
}

constexpr int64_t STREAMED_ROWS = 16; // more are taken in blocks of two tiles, which stay near while columns pass

// Columns [from, to) of all rows; both multiples of `COLUMNS`.
template <class I> TARGET void columns_of(const Product<I> &p, int64_t from, int64_t to) {
    const int64_t blocks = p.count <= STREAMED_ROWS ? 1 : (p.count + 2 * I::ROWS - 1) / (2 * I::ROWS);
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t column = from; column < to; column += COLUMNS)
            rows_of_columns(p, block * p.count / blocks, (block + 1) * p.count / blocks, column);
}

TARGET void columns_of(const Product<Tiles> &p, int64_t from, int64_t to) {
    columns_by_tiles({p.given, p.weight, p.bias, p.residual, p.out, p.count, p.inputs, p.columns, p.inputs}, from, to);
}

// Columns of a task: whole groups of `unit`, of about `bytes`.
inline int64_t task_columns(int64_t inputs, int64_t unit, int64_t bytes) {
    return std::max<int64_t>(bytes / std::max<int64_t>(2 * inputs, 1) / unit, 1) * unit;
}

// A row as it is multiplied.
template <class I> INLINE void take_row(const uint16_t *row, typename I::Item *to, int64_t width) {
    for (int64_t at = 0; at < width; at += BLOCK) I::put(to + at, load_some(row + at, mask_of(width - at)));
}

// ---------------------------------------------------------------------------------------------- norm, gate

// x / sqrt(mean(x^2) + epsilon) * weight, in fp32.
template <class I>
INLINE void norm_row(const uint16_t *x, const uint16_t *weight, typename I::Item *out, int64_t width, float epsilon) {
    __m512 squares = _mm512_setzero_ps(), others = _mm512_setzero_ps();
    for (int64_t at = 0; at < width; at += BLOCK) {
        const Planes value = widen(load_some(x + at, mask_of(width - at)));
        squares = _mm512_fmadd_ps(value.even, value.even, squares);
        others = _mm512_fmadd_ps(value.odd, value.odd, others);
    }
    const float total = _mm512_reduce_add_ps(_mm512_add_ps(squares, others));
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(total / float(width) + epsilon));
    for (int64_t at = 0; at < width; at += BLOCK) {
        const __mmask32 mask = mask_of(width - at);
        const Planes value = widen(load_some(x + at, mask)), by = widen(load_some(weight + at, mask));
        I::put(out + at, narrow({_mm512_mul_ps(_mm512_mul_ps(value.even, scale), by.even),
                                 _mm512_mul_ps(_mm512_mul_ps(value.odd, scale), by.odd)}));
    }
}

INLINE __m512 silu(__m512 x) {
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// silu(gate) * up of 32 numbers; the gate is rounded before, as torch's result is.
INLINE __m512i gate_block(__m512i gates, __m512i ups) {
    const Planes gate = widen(gates), up = widen(ups), open = rounded({silu(gate.even), silu(gate.odd)});
    return narrow({_mm512_mul_ps(open.even, up.even), _mm512_mul_ps(open.odd, up.odd)});
}

// The pairs (x[d], x[d + half]) of one head turned by their angles; `turn` is [2, half] fp32: cosines, sines.
INLINE void turn_head(uint16_t *head, const float *turn, int64_t half) {
    for (int64_t at = 0; at < half; at += 16) {
        const __mmask16 mask = __mmask16(mask_of(std::min<int64_t>(half - at, 16)));
        const __m512 a = wide16(head + at, mask), b = wide16(head + half + at, mask);
        const __m512 cosine = _mm512_maskz_loadu_ps(mask, turn + at), sine = _mm512_maskz_loadu_ps(mask, turn + half + at);
        store16(head + at, _mm512_sub_ps(_mm512_mul_ps(a, cosine), _mm512_mul_ps(b, sine)), mask);
        store16(head + half + at, _mm512_add_ps(_mm512_mul_ps(b, cosine), _mm512_mul_ps(a, sine)), mask);
    }
}

#endif

} // namespace
