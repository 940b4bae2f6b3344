// A block of keys by AVX2, in fp32: queries in bf16 are given in fp32, keys and values are widened as they are read.
// For heads of any multiple of 16 numbers.

#pragma once

#include "head_block.h"

#if X86

#include <immintrin.h>

namespace {

constexpr int WIDE = 16;    // keys that are scored together, and numbers of a value that are mixed together
constexpr int FEW_ROWS = 4; // below, what is turned or copied for all rows does not pay

#define TARGET256 __attribute__((target("avx2,fma")))
#define INLINE256 static inline TARGET256 __attribute__((always_inline))

// 8 numbers in fp32.
INLINE256 __m256 load8(const float *from) { return _mm256_loadu_ps(from); }
INLINE256 __m256 load8(const uint16_t *from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// As `exp_small`; keeps what is no number.
INLINE256 __m256 exp256(__m256 x) {
    const __m256 least = _mm256_set1_ps(-87.0f), seen = _mm256_cmp_ps(x, least, _CMP_NLT_UQ);
    const __m256 limited = _mm256_max_ps(least, x);
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(limited, _mm256_set1_ps(1.44269504f)), 8);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), limited);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_and_ps(seen, _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))));
}

// Absolute error below 1e-7; keeps what is no number.
INLINE256 __m256 tanh256(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    const __m256 t = exp256(_mm256_mul_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(-2.0f)));
    return _mm256_or_ps(_mm256_div_ps(_mm256_sub_ps(one, t), _mm256_add_ps(one, t)), _mm256_and_ps(sign, x));
}

// 8 vectors of 8 numbers each, transposed.
INLINE256 void transpose8(__m256 *a) {
    __m256 b[8], c[8];
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            c[4 * i + 2 * j] = _mm256_shuffle_ps(b[4 * i + j], b[4 * i + 2 + j], 0x44);
            c[4 * i + 2 * j + 1] = _mm256_shuffle_ps(b[4 * i + j], b[4 * i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_permute2f128_ps(c[i], c[4 + i], 0x20);
        a[4 + i] = _mm256_permute2f128_ps(c[i], c[4 + i], 0x31);
    }
}

// 8 vectors, each summed to a number of the result.
INLINE256 __m256 sum8(const __m256 *a) {
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

INLINE256 float sum_of(__m256 a) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

INLINE256 float greatest_of(__m256 a) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

// ---------------------------------------------------------------------------------------------- scores

// Scores of one row after another against `WIDE` keys, as they lie.
template <typename T> INLINE256 void score_in_place(const HeadBlock &b, int at) {
    for (int r = 0; r < b.rows; r++) {
        const float *query = reinterpret_cast<const float *>(b.query) + size_t(r) * b.dim;
        for (int first = at; first < at + WIDE; first += 8) {
            __m256 sums[8];
            for (int k = 0; k < 8; k++) sums[k] = _mm256_setzero_ps();
            for (int d = 0; d < b.dim; d += 8) {
                const __m256 q = load8(query + d);
                for (int k = 0; k < 8; k++)
                    sums[k] = _mm256_fmadd_ps(q, load8(reinterpret_cast<const T *>(b.keys[first + k] + b.key_offset) + d), sums[k]);
            }
            _mm256_storeu_ps(b.scores + r * BLOCK + first, sum8(sums));
        }
    }
}

// Scores of `N` rows against `WIDE` keys that lie transposed in `turned` [dim, WIDE].
template <int N> INLINE256 void score_rows(const HeadBlock &b, int r, int at, const float *turned) {
    const float *query = reinterpret_cast<const float *>(b.query) + size_t(r) * b.dim;
    __m256 sums[N][2];
    for (int i = 0; i < N; i++) sums[i][0] = sums[i][1] = _mm256_setzero_ps();
    for (int d = 0; d < b.dim; d++) {
        const __m256 low = _mm256_load_ps(turned + d * WIDE), high = _mm256_load_ps(turned + d * WIDE + 8);
        for (int i = 0; i < N; i++) {
            const __m256 q = _mm256_broadcast_ss(query + i * b.dim + d);
            sums[i][0] = _mm256_fmadd_ps(q, low, sums[i][0]);
            sums[i][1] = _mm256_fmadd_ps(q, high, sums[i][1]);
        }
    }
    for (int i = 0; i < N; i++) {
        _mm256_storeu_ps(b.scores + (r + i) * BLOCK + at, sums[i][0]);
        _mm256_storeu_ps(b.scores + (r + i) * BLOCK + at + 8, sums[i][1]);
    }
}

template <typename T> INLINE256 void turn_keys(const HeadBlock &b, int at, float *turned) {
    for (int first = 0; first < WIDE; first += 8)
        for (int d = 0; d < b.dim; d += 8) {
            __m256 square[8];
            for (int k = 0; k < 8; k++)
                square[k] = load8(reinterpret_cast<const T *>(b.keys[at + first + k] + b.key_offset) + d);
            transpose8(square);
            for (int k = 0; k < 8; k++) _mm256_store_ps(turned + (d + k) * WIDE + first, square[k]);
        }
}

template <typename T> INLINE256 void score_turned(const HeadBlock &b, int at) {
    alignas(64) float turned[MOST_DIM * WIDE];
    turn_keys<T>(b, at, turned);
    int r = 0;
    for (; r + 4 <= b.rows; r += 4) score_rows<4>(b, r, at, turned);
    for (; r < b.rows; r++) score_rows<1>(b, r, at, turned);
}

// ---------------------------------------------------------------------------------------------- shares

// Scores of 8 keys from `at` on as row `r` sees them: scaled and capped, none of keys that are hidden from it.
INLINE256 __m256 seen_scores8(const HeadBlock &b, int r, int at) {
    const __m256i key = _mm256_add_epi32(_mm256_set1_epi32(at), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i seen = _mm256_cmpgt_epi32(_mm256_set1_epi32(b.visible[r]), key);
    if (b.hidden) seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(b.hidden[r]), key), seen);
    __m256 scores = _mm256_mul_ps(load8(b.scores + r * BLOCK + at), _mm256_set1_ps(b.scale));
    if (b.cap != 0) {
        const __m256 cap = _mm256_set1_ps(b.cap);
        scores = _mm256_mul_ps(tanh256(_mm256_div_ps(scores, cap)), cap);
    }
    return _mm256_blendv_ps(_mm256_set1_ps(NOTHING), scores, _mm256_castsi256_ps(seen));
}

// Scores of a row to shares in place; updates its highest score and its sum, and what is mixed so far to what it is worth.
INLINE256 void take_shares8(const HeadBlock &b, int r) {
    float *scores = b.scores + r * BLOCK;
    const int groups = (b.count + 7) / 8;
    __m256 held[BLOCK / 8], high = _mm256_set1_ps(NOTHING), strange = _mm256_setzero_ps();
    for (int i = 0; i < groups; i++) {
        held[i] = seen_scores8(b, r, 8 * i);
        high = _mm256_max_ps(high, held[i]);
        strange = _mm256_or_ps(strange, _mm256_cmp_ps(held[i], held[i], _CMP_UNORD_Q));
    }
    const float highest = _mm256_movemask_ps(strange) ? std::nanf("") : std::max(greatest_of(high), b.high[r]);
    if (highest == NOTHING) {
        for (int i = 0; i < groups; i++) _mm256_storeu_ps(scores + 8 * i, _mm256_setzero_ps());
        return;
    }
    __m256 total = _mm256_setzero_ps();
    for (int i = 0; i < groups; i++) {
        const __m256 shares = exp256(_mm256_sub_ps(held[i], _mm256_set1_ps(highest)));
        _mm256_storeu_ps(scores + 8 * i, shares);
        total = _mm256_add_ps(total, shares);
    }
    if (b.high[r] != highest) {
        const float kept = std::exp(b.high[r] - highest);
        float *mixed = b.mixed + size_t(r) * b.dim;
        for (int d = 0; d < b.dim; d += 8) _mm256_storeu_ps(mixed + d, _mm256_mul_ps(load8(mixed + d), _mm256_set1_ps(kept)));
        b.sum[r] *= kept;
        b.high[r] = highest;
    }
    b.sum[r] += sum_of(total);
}

// ---------------------------------------------------------------------------------------------- values

// Mixes numbers [d, d + 8 V) of the keys' values into `N` rows. `values[key]` begins with number d.
template <int N, int V, typename T, typename At> INLINE256 void mix_rows(const HeadBlock &b, int r, int d, At values) {
    float *mixed = b.mixed + size_t(r) * b.dim + d;
    const float *shares = b.scores + r * BLOCK;
    __m256 out[N][V];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++) out[i][v] = load8(mixed + i * b.dim + 8 * v);
    for (int k = 0; k < b.count; k++) {
        const T *value = values(k);
        for (int v = 0; v < V; v++) {
            const __m256 loaded = load8(value + 8 * v);
            for (int i = 0; i < N; i++)
                out[i][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(shares + i * BLOCK + k), loaded, out[i][v]);
        }
    }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++) _mm256_storeu_ps(mixed + i * b.dim + 8 * v, out[i][v]);
}

// The values as they lie, row after row.
template <typename T> INLINE256 void mix_in_place(const HeadBlock &b) {
    for (int r = 0; r < b.rows; r++) {
        int d = 0;
        const auto values = [&](int k) TARGET256 { return reinterpret_cast<const T *>(b.keys[k] + b.value_offset) + d; };
        for (; d + 64 <= b.dim; d += 64) mix_rows<1, 8, T>(b, r, d, values);
        for (; d < b.dim; d += WIDE) mix_rows<1, 2, T>(b, r, d, values);
    }
}

// The values copied for all rows, `WIDE` numbers of each at a time: as they lie, many may share few lines of the cache.
template <typename T> INLINE256 void mix_copied(const HeadBlock &b) {
    alignas(64) float copied[BLOCK * WIDE];
    const auto values = [&](int k) TARGET256 { return static_cast<const float *>(copied + k * WIDE); };
    for (int d = 0; d < b.dim; d += WIDE) {
        for (int k = 0; k < b.count; k++) {
            const T *value = reinterpret_cast<const T *>(b.keys[k] + b.value_offset) + d;
            _mm256_store_ps(copied + k * WIDE, load8(value));
            _mm256_store_ps(copied + k * WIDE + 8, load8(value + 8));
        }
        int r = 0;
        for (; r + 4 <= b.rows; r += 4) mix_rows<4, 2, float>(b, r, d, values);
        for (; r < b.rows; r++) mix_rows<1, 2, float>(b, r, d, values);
    }
}

// Keys and values `T`. FIXED: a row's sums have one order, however many other rows there are.
template <typename T, bool FIXED = false> TARGET256 void avx2_f32(const HeadBlock &b) {
    for (int at = 0; at < b.count; at += WIDE) {
        if (b.rows < FEW_ROWS && !FIXED) score_in_place<T>(b, at);
        else score_turned<T>(b, at);
        if (b.next) prefetch_head(b, std::min(at, b.next_count), std::min(at + WIDE, b.next_count));
    }
    for (int r = 0; r < b.rows; r++) take_shares8(b, r);
    if (b.rows < FEW_ROWS) mix_in_place<T>(b);
    else mix_copied<T>(b);
}

} // namespace

#endif
