// Products, norms and gates of rows in bf16, for processors with AVX-512; sums are fp32. What is shared by the kernels of
// this folder.
//
// A product comes in two ways of multiplying: `Dot` by AVX-512 BF16's dot products of pairs, `Fused` by AVX-512's fused
// multiply-add on numbers widened to fp32, which takes twice the instructions. Both take the rows in a form of their own
// (`Item`), in which they are multiplied by many columns; weights are as they lie in memory.
//
// Functions are compiled for both: the target allows AVX-512 BF16 throughout, and only `Dot` has its instructions, for a
// compiler makes none of them from code without `__bf16`.

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#else
#define X86 0
#endif

extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {

// What a processor can do, as `dunlin_level` tells it.
enum Level { NONE = 0, BF16 = 1, AMX = 2, AVX512 = 3 };

int level_of_processor() {
#if X86
    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return NONE;
    if (!__builtin_cpu_supports("avx512bf16")) return AVX512;
    return __builtin_cpu_supports("amx-bf16") ? AMX : BF16;
#else
    return NONE;
#endif
}

#if X86

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

// Before a loop of few turns over registers: a compiler that leaves it a loop leaves what it indexes in memory.
#define ALL_TURNS _Pragma("GCC unroll 8")

constexpr int COLUMNS = 4; // of a product that are computed at once
constexpr int BLOCK = 32;  // numbers that are multiplied at once

INLINE __mmask32 mask_of(int64_t left) { return left >= BLOCK ? 0xffffffffu : __mmask32((1u << left) - 1); }

constexpr int64_t padded(int64_t numbers) { return (numbers + BLOCK - 1) / BLOCK * BLOCK; }

// From one row that is multiplied to the next: a line more, or rows of 4 KB would all be in the same places of a cache.
constexpr int64_t stride_of(int64_t numbers) { return padded(numbers) + BLOCK; }

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
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(limited, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), limited);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(p, r), r, r), _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

// ---------------------------------------------------------------------------------------------- ways of multiplying

struct Dot {
    using Item = uint16_t;
    using Weight = __m512i;
    using Given = __m512i;
    static constexpr int ROWS = 6; // that are computed at once: what fits the registers
    INLINE Weight weight(__m512i bits) { return bits; }
    INLINE Given given(const Item *from) { return _mm512_loadu_si512(from); }
    INLINE __m512 add(__m512 total, Given x, Weight w) { return _mm512_dpbf16_ps(total, (__m512bh)x, (__m512bh)w); }
    INLINE void put(Item *to, __m512i bits) { _mm512_storeu_si512(to, bits); }
};

struct Fused {
    using Item = float;
    using Weight = Planes;
    using Given = Planes;
    static constexpr int ROWS = 5;
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

// ---------------------------------------------------------------------------------------------- products

// out[count, columns] = given @ weight[columns, inputs]^T + bias + residual. `given` has `padded(inputs)` items a row,
// zeros at its end, and rows are `stride_of(inputs)` items apart. A result is rounded before the residual is added, and again. Bias and residual may be null.
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

constexpr int64_t TASK_BYTES = 32768; // of weights: small, for a thread may be late

// Columns of a task: whole groups of `unit`, of about `TASK_BYTES`.
INLINE int64_t task_columns(int64_t inputs, int64_t unit) {
    return std::max<int64_t>(TASK_BYTES / std::max<int64_t>(2 * inputs, 1) / unit, 1) * unit;
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

INLINE __m512 wide16(const uint16_t *from, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

INLINE void store16(uint16_t *to, __m512 value, __mmask16 mask) {
    _mm256_mask_storeu_epi16(to, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_up16(value), 16)));
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
