// A block of keys by AVX-512: in fp32, and in bf16 by its dot products of pairs.

#pragma once

#include "head_block.h"
#include "vectors.h"

#if X86

#include <immintrin.h>

namespace {

constexpr int FOLDED = 8; // rows that share transposed keys

#define TARGET512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define TARGETBF __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define INLINE512 static inline TARGET512 __attribute__((always_inline))
#define INLINEBF static inline TARGETBF __attribute__((always_inline))

INLINE512 __m512 exp512(__m512 x) {
    // Both keep what is no number.
    const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    const __m512 limited = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    const ExpParts parts = exp_parts(limited);
    const __m512 r = parts.r, p = _mm512_fmadd_ps(_mm512_mul_ps(parts.p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_maskz_scalef_ps(seen, p, parts.n);
}

// Absolute error below 1e-7; keeps what is no number.
INLINE512 __m512 tanh512(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    const __m512 t = exp512(_mm512_mul_ps(_mm512_andnot_ps(sign, x), _mm512_set1_ps(-2.0f)));
    return _mm512_or_ps(_mm512_div_ps(_mm512_sub_ps(one, t), _mm512_add_ps(one, t)), _mm512_and_ps(sign, x));
}

// Scores of 16 keys from `at` on as row `r` sees them: scaled and capped, none of keys that are hidden from it.
INLINE512 __m512 seen_scores(const HeadBlock &b, int r, int at) {
    const int left = b.visible[r] - at, hidden = b.hidden ? b.hidden[r] : 0;
    __mmask16 seen = left >= 16 ? 0xffff : left <= 0 ? 0 : __mmask16((1u << left) - 1);
    if (hidden > at) seen &= hidden >= at + 16 ? 0 : __mmask16(0xffffu << (hidden - at));
    const __m512 scores = _mm512_loadu_ps(b.scores + r * BLOCK + at), cap = _mm512_set1_ps(b.cap);
    const __m512 held = _mm512_mask_mul_ps(_mm512_set1_ps(NOTHING), seen, scores, _mm512_set1_ps(b.scale));
    if (b.cap == 0) return held;
    return _mm512_mask_mul_ps(held, seen, tanh512(_mm512_div_ps(held, cap)), cap);
}

// Scores of a row to shares in place; updates the row's highest score. Returns what its earlier sum is worth now.
INLINE512 float shares_of(const HeadBlock &b, int r) {
    float *scores = b.scores + r * BLOCK;
    const int groups = (b.count + 15) / 16;
    __m512 held[BLOCK / 16], high = _mm512_set1_ps(NOTHING);
    __mmask16 strange = 0;
    for (int i = 0; i < groups; i++) {
        held[i] = seen_scores(b, r, 16 * i);
        high = _mm512_max_ps(high, held[i]);
        strange |= _mm512_cmp_ps_mask(held[i], held[i], _CMP_UNORD_Q);
    }
    const float highest = strange ? std::nanf("") : std::max(_mm512_reduce_max_ps(high), b.high[r]);
    if (highest == NOTHING) {
        for (int i = 0; i < groups; i++) _mm512_storeu_ps(scores + 16 * i, _mm512_setzero_ps());
        return 1.0f;
    }
    const __m512 subtracted = _mm512_set1_ps(highest);
    for (int i = 0; i < groups; i++)
        _mm512_storeu_ps(scores + 16 * i, exp512(_mm512_sub_ps(held[i], subtracted)));
    const float kept = b.high[r] == highest ? 1.0f : std::exp(b.high[r] - highest);
    b.high[r] = highest;
    return kept;
}

// 16 numbers in fp32.
INLINE512 __m512 load16(const float *from) { return _mm512_loadu_ps(from); }
INLINE512 __m512 load16(const uint16_t *from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Scores of `N` rows against 16 keys that lie transposed in `words` [dim, 16].
template <int NV, int N> INLINE512 void score_tile_f32(const HeadBlock &b, int r, int at, const __m512i *words) {
    const float *query = reinterpret_cast<const float *>(b.query) + size_t(r) * NV * 16;
    __m512 sums[N];
    for (int i = 0; i < N; i++) sums[i] = _mm512_setzero_ps();
    for (int word = 0; word < NV * 16; word++)
        for (int i = 0; i < N; i++)
            sums[i] = _mm512_fmadd_ps(_mm512_castsi512_ps(words[word]), _mm512_set1_ps(query[i * NV * 16 + word]), sums[i]);
    for (int i = 0; i < N; i++) _mm512_storeu_ps(b.scores + (r + i) * BLOCK + at, sums[i]);
}

template <int NV, typename T> INLINE512 void score_many_f32(const HeadBlock &b, int at) {
    __m512i words[NV * 16];
    for (int v = 0; v < NV; v++) {
        for (int k = 0; k < 16; k++)
            words[v * 16 + k] =
                _mm512_castps_si512(load16(reinterpret_cast<const T *>(b.keys[at + k] + b.key_offset) + 16 * v));
        transpose16(words + v * 16);
    }
    int r = 0;
    for (; r + FOLDED <= b.rows; r += FOLDED) score_tile_f32<NV, FOLDED>(b, r, at, words);
    for (; r + 2 <= b.rows; r += 2) score_tile_f32<NV, 2>(b, r, at, words);
    for (; r < b.rows; r++) score_tile_f32<NV, 1>(b, r, at, words);
}

template <int NV, typename T> INLINE512 void score_few_f32(const HeadBlock &b, int at) {
    for (int r = 0; r < b.rows; r++) {
        const float *query = reinterpret_cast<const float *>(b.query) + size_t(r) * NV * 16;
        __m512 q[NV], lanes[16];
        for (int v = 0; v < NV; v++) q[v] = _mm512_loadu_ps(query + 16 * v);
        for (int k = 0; k < 16; k++) {
            const T *key = reinterpret_cast<const T *>(b.keys[at + k] + b.key_offset);
            lanes[k] = _mm512_mul_ps(q[0], load16(key));
            for (int v = 1; v < NV; v++) lanes[k] = _mm512_fmadd_ps(q[v], load16(key + 16 * v), lanes[k]);
        }
        _mm512_storeu_ps(b.scores + r * BLOCK + at, sum16(lanes));
    }
}

// Mixes `values` of the block's keys into `N` rows, whose results so far are worth `kept`.
template <int NV, int N, typename T>
INLINE512 void mix_tile_f32(const HeadBlock &b, int r, const float *kept, const T *const *values) {
    float *mixed = b.mixed + size_t(r) * NV * 16;
    const float *shares = b.scores + r * BLOCK;
    __m512 out[N][NV];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < NV; v++)
            out[i][v] = _mm512_mul_ps(_mm512_loadu_ps(mixed + (i * NV + v) * 16), _mm512_set1_ps(kept[i]));
    for (int k = 0; k < b.count; k++) {
        for (int v = 0; v < NV; v++) {
            const __m512 loaded = load16(values[k] + 16 * v);
            for (int i = 0; i < N; i++)
                out[i][v] = _mm512_fmadd_ps(_mm512_set1_ps(shares[i * BLOCK + k]), loaded, out[i][v]);
        }
    }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < NV; v++) _mm512_storeu_ps(mixed + (i * NV + v) * 16, out[i][v]);
}

template <int NV, typename T> INLINE512 void mix_f32(const HeadBlock &b, const T *const *values) {
    constexpr int N = NV <= 4 ? 4 : 2;
    float kept[N];
    int r = 0;
    const auto share = [&](int i) TARGET512 {
        kept[i] = shares_of(b, r + i);
        __m512 total = _mm512_setzero_ps();
        for (int k = 0; k < b.count; k += 16)
            total = _mm512_add_ps(total, _mm512_loadu_ps(b.scores + (r + i) * BLOCK + k));
        b.sum[r + i] = b.sum[r + i] * kept[i] + _mm512_reduce_add_ps(total);
    };
    for (; r + N <= b.rows; r += N) {
        for (int i = 0; i < N; i++) share(i);
        mix_tile_f32<NV, N>(b, r, kept, values);
    }
    if (N == 4 && r + 2 <= b.rows) {
        share(0), share(1);
        mix_tile_f32<NV, 2>(b, r, kept, values);
        r += 2;
    }
    for (; r < b.rows; r++) {
        share(0);
        mix_tile_f32<NV, 1>(b, r, kept, values);
    }
}

// Arithmetic in fp32 over keys and values `T`. NV: vectors of 16 numbers in a head. FIXED: a row's sums have one order,
// however many other rows there are.
template <int NV, typename T, bool FIXED = false> TARGET512 void avx512_f32(const HeadBlock &b) {
    for (int at = 0; at < b.count; at += 16) {
        if (b.rows < 4 && !FIXED) score_few_f32<NV, T>(b, at);
        else score_many_f32<NV, T>(b, at);
        if (b.next) prefetch_head(b, std::min(at, b.next_count), std::min(at + 16, b.next_count));
    }
    const T *values[BLOCK];
    for (int k = 0; k < b.count; k++) values[k] = reinterpret_cast<const T *>(b.keys[k] + b.value_offset);
    if (sizeof(T) == sizeof(float) || b.rows < FOLDED) return mix_f32<NV>(b, values);
    // Several tiles read the values: widened once.
    float wide[BLOCK * NV * 16];
    const float *widened[BLOCK];
    for (int k = 0; k < b.count; k++) {
        for (int v = 0; v < NV; v++) _mm512_storeu_ps(wide + (k * NV + v) * 16, load16(values[k] + 16 * v));
        widened[k] = wide + k * NV * 16;
    }
    mix_f32<NV>(b, widened);
}

INLINEBF __m512bh pairs(__m512i bits) { return (__m512bh)bits; }

// Scores of `N` rows against 16 keys that lie transposed in `words` [dim / 2, 16].
template <int NV, int N> INLINEBF void score_tile(const HeadBlock &b, int r, int at, const __m512i *words) {
    const int32_t *query = reinterpret_cast<const int32_t *>(b.query) + size_t(r) * NV * 16;
    __m512 sums[N];
    for (int i = 0; i < N; i++) sums[i] = _mm512_setzero_ps();
    for (int word = 0; word < NV * 16; word++)
        for (int i = 0; i < N; i++)
            sums[i] = _mm512_dpbf16_ps(sums[i], pairs(words[word]), pairs(_mm512_set1_epi32(query[i * NV * 16 + word])));
    for (int i = 0; i < N; i++) _mm512_storeu_ps(b.scores + (r + i) * BLOCK + at, sums[i]);
}

// Mixes values into `N` rows. Values of two keys are interleaved for the dot product: `put_in_order` undoes the order.
template <int NV, int N> INLINEBF void mix_tile(const HeadBlock &b, int r, const uint32_t *shares, const float *kept) {
    float *mixed = b.mixed + size_t(r) * NV * 32;
    __m512 out[N][2 * NV];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < 2 * NV; v++)
            out[i][v] = _mm512_mul_ps(_mm512_loadu_ps(mixed + (i * 2 * NV + v) * 16), _mm512_set1_ps(kept[r + i]));
    for (int k = 0; k < b.count; k += 2) {
        const char *one = b.keys[k] + b.value_offset, *two = b.keys[k + 1] + b.value_offset;
        for (int v = 0; v < NV; v++) {
            const __m512i x = _mm512_loadu_si512(one + 64 * v), y = _mm512_loadu_si512(two + 64 * v);
            const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);
            for (int i = 0; i < N; i++) {
                const __m512i share = _mm512_set1_epi32(int32_t(shares[(r + i) * (BLOCK / 2) + k / 2]));
                out[i][2 * v] = _mm512_dpbf16_ps(out[i][2 * v], pairs(low), pairs(share));
                out[i][2 * v + 1] = _mm512_dpbf16_ps(out[i][2 * v + 1], pairs(high), pairs(share));
            }
        }
    }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < 2 * NV; v++) _mm512_storeu_ps(mixed + (i * 2 * NV + v) * 16, out[i][v]);
}

template <int NV> INLINEBF void score_few(const HeadBlock &b, int at) {
    for (int r = 0; r < b.rows; r++) {
        const char *query = b.query + size_t(r) * NV * 64;
        __m512i q[NV];
        __m512 lanes[16];
        for (int v = 0; v < NV; v++) q[v] = _mm512_loadu_si512(query + 64 * v);
        for (int k = 0; k < 16; k++) {
            const char *key = b.keys[at + k] + b.key_offset;
            lanes[k] = _mm512_setzero_ps();
            for (int v = 0; v < NV; v++)
                lanes[k] = _mm512_dpbf16_ps(lanes[k], pairs(q[v]), pairs(_mm512_loadu_si512(key + 64 * v)));
        }
        _mm512_storeu_ps(b.scores + r * BLOCK + at, sum16(lanes));
    }
}

template <int NV> INLINEBF void score_many(const HeadBlock &b, int at) {
    __m512i words[NV * 16];
    for (int v = 0; v < NV; v++) {
        for (int k = 0; k < 16; k++) words[v * 16 + k] = _mm512_loadu_si512(b.keys[at + k] + b.key_offset + 64 * v);
        transpose16(words + v * 16);
    }
    int r = 0;
    for (; r + FOLDED <= b.rows; r += FOLDED) score_tile<NV, FOLDED>(b, r, at, words);
    for (; r + 2 <= b.rows; r += 2) score_tile<NV, 2>(b, r, at, words);
    for (; r < b.rows; r++) score_tile<NV, 1>(b, r, at, words);
}

// All rows' shares rounded to bf16, and what their earlier results are worth now.
INLINEBF void take_shares(const HeadBlock &b, uint32_t *shares, float *kept) {
    for (int r = 0; r < b.rows; r++) {
        kept[r] = shares_of(b, r);
        float *scores = b.scores + r * BLOCK;
        __m512 total = _mm512_setzero_ps();
        for (int k = 0; k < b.count; k += 16) {
            // The sum is of what is mixed: shares rounded to bf16.
            const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(scores + k));
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(shares + r * (BLOCK / 2) + k / 2), rounded);
            total = _mm512_add_ps(
                total, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
        }
        b.sum[r] = b.sum[r] * kept[r] + _mm512_reduce_add_ps(total);
    }
}

// NV: vectors of 32 numbers in a head.
template <int NV> TARGETBF void avx512_bf16(const HeadBlock &b) {
    constexpr int N = NV <= 2 ? 4 : 2;
    for (int at = 0; at < b.count; at += 16) {
        if (b.rows < 4) score_few<NV>(b, at);
        else score_many<NV>(b, at);
        if (b.next) prefetch_head(b, std::min(at, b.next_count), std::min(at + 16, b.next_count));
    }
    uint32_t shares[MOST_ROWS * (BLOCK / 2)];
    float kept[MOST_ROWS];
    take_shares(b, shares, kept);
    int r = 0;
    for (; r + N <= b.rows; r += N) mix_tile<NV, N>(b, r, shares, kept);
    if (N == 4 && r + 2 <= b.rows) mix_tile<NV, 2>(b, r, shares, kept), r += 2;
    for (; r < b.rows; r++) mix_tile<NV, 1>(b, r, shares, kept);
}

// A row of what `mix_tile` makes, times `scale`, in the order of the head's numbers.
TARGETBF void put_in_order(const float *mixed, float scale, int dim, bool is_bf16, char *out) {
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_set_epi32(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
    const __m512 scales = _mm512_set1_ps(scale);
    for (int d = 0; d < dim; d += 32) {
        const __m512 low = _mm512_loadu_ps(mixed + d), high = _mm512_loadu_ps(mixed + d + 16);
        const __m512 one = _mm512_mul_ps(_mm512_permutex2var_ps(low, first, high), scales);
        const __m512 two = _mm512_mul_ps(_mm512_permutex2var_ps(low, second, high), scales);
        if (is_bf16) {
            _mm512_storeu_si512(out + 2 * d, (__m512i)_mm512_cvtne2ps_pbh(two, one));
        } else {
            _mm512_storeu_ps(out + 4 * d, one);
            _mm512_storeu_ps(out + 4 * d + 64, two);
        }
    }
}

} // namespace

#endif
