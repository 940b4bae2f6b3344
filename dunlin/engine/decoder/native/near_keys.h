// Attention of one row's query heads over a block of keys that lie anywhere, in bf16: scores, shares of them, and the
// values mixed by these. A head's result so far is its highest score, the sum of its shares, and its values in planes.

#pragma once

#include "bf16_rows.h"

#include <limits>

namespace {

#if X86

constexpr int NEAR = 64; // keys that are scored at once
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Keys of one KV head that are near: `keys[i]` to 32 * NV numbers, the values `value` numbers further; entries up to the
// next multiple of 16 may be read.
struct Near {
    const uint16_t *const *keys;
    int count;
    int64_t at, value;
};

// Keys that come next, and how many of their heads were read towards the caches. `at`: the first head's place in a slot;
// from a head to the next are `dim` numbers, from a key to its value `value`.
struct Ahead {
    const uint16_t *const *keys;
    int count, heads;
    int64_t at, dim, value;
    int key = 0, head = 0;
};

// The next head of the keys ahead, slot after slot as they lie in memory, whatever head is computed meanwhile. To the
// second cache: it has more reads on their way at once than the first, which could not hold them all.
template <int NV> INLINE void fetch(Ahead &ahead) {
    if (ahead.key >= ahead.count) return;
    const uint16_t *from = ahead.keys[ahead.key] + ahead.at + ahead.head * ahead.dim;
    for (int line = 0; line < NV; line++) {
        _mm_prefetch((const char *)(from + line * BLOCK), _MM_HINT_T1);
        _mm_prefetch((const char *)(from + ahead.value + line * BLOCK), _MM_HINT_T1);
    }
    if (++ahead.head == ahead.heads) ahead.head = 0, ahead.key++;
}

// Scores of `N` query heads against all near keys.
template <class I, int NV, int N>
INLINE void score(const typename I::Item *query, const Near &near, Ahead &ahead, float scale, float *scores) {
    for (int first = 0; first < near.count; first += 16) {
        __m512 lanes[N][16];
        for (int k = 0; k < 16; k++) {
            const uint16_t *key = near.keys[first + k] + near.at;
            typename I::Weight words[NV];
            for (int v = 0; v < NV; v++) words[v] = I::weight(_mm512_loadu_si512(key + v * BLOCK));
            for (int i = 0; i < N; i++) {
                __m512 total = _mm512_setzero_ps();
                for (int v = 0; v < NV; v++) total = I::add(total, I::given(query + (i * NV + v) * BLOCK), words[v]);
                lanes[i][k] = total;
            }
            fetch<NV>(ahead);
        }
        for (int i = 0; i < N; i++)
            _mm512_storeu_ps(scores + i * NEAR + first, _mm512_mul_ps(sum16(lanes[i]), _mm512_set1_ps(scale)));
    }
}

// A head's scores to shares in place; returns what its earlier values are worth now. What is no number stays none.
INLINE float share(float *scores, int count, float &high, float &sum) {
    __m512 highest = _mm512_set1_ps(NOTHING);
    __mmask16 strange = 0;
    for (int k = 0; k < count; k += 16) {
        const __mmask16 mask = __mmask16(mask_of(std::min(count - k, 16)));
        const __m512 score = _mm512_mask_loadu_ps(_mm512_set1_ps(NOTHING), mask, scores + k);
        highest = _mm512_max_ps(highest, score);
        strange |= _mm512_cmp_ps_mask(score, score, _CMP_UNORD_Q);
        _mm512_storeu_ps(scores + k, score);
    }
    const float top = strange ? std::nanf("") : std::max(_mm512_reduce_max_ps(highest), high);
    if (strange || !(top > NOTHING)) {
        for (int k = 0; k < count; k++) scores[k] = strange ? std::nanf("") : 0.0f;
        sum = strange ? std::nanf("") : sum;
        return 1.0f;
    }
    __m512 total = _mm512_setzero_ps();
    for (int k = 0; k < count; k += 16) {
        const __mmask16 seen = __mmask16(mask_of(std::min(count - k, 16)));
        const __m512 share =
            _mm512_maskz_mov_ps(seen, exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + k), _mm512_set1_ps(top))));
        _mm512_storeu_ps(scores + k, share);
        total = _mm512_add_ps(total, share);
    }
    const float kept = high == top ? 1.0f : std::exp(high - top);
    high = top;
    sum = sum * kept + _mm512_reduce_add_ps(total);
    return kept;
}

// Mixes near values into those of `N` heads, which are worth `kept`.
template <int NV, int N> INLINE void mix(const Near &near, const float *shares, const float *kept, float *mixed) {
    Planes out[N][NV];
    for (int i = 0; i < N; i++)
        for (int v = 0; v < NV; v++) {
            const float *from = mixed + (i * NV + v) * BLOCK;
            const __m512 worth = _mm512_set1_ps(kept[i]);
            out[i][v] = {_mm512_mul_ps(_mm512_loadu_ps(from), worth), _mm512_mul_ps(_mm512_loadu_ps(from + 16), worth)};
        }
    for (int k = 0; k < near.count; k++) {
        const uint16_t *value = near.keys[k] + near.at + near.value;
        __m512 by[N];
        for (int i = 0; i < N; i++) by[i] = _mm512_set1_ps(shares[i * NEAR + k]);
        for (int v = 0; v < NV; v++) {
            const Planes wide = widen(_mm512_loadu_si512(value + v * BLOCK));
            for (int i = 0; i < N; i++)
                out[i][v] = {_mm512_fmadd_ps(by[i], wide.even, out[i][v].even),
                             _mm512_fmadd_ps(by[i], wide.odd, out[i][v].odd)};
        }
    }
    for (int i = 0; i < N; i++)
        for (int v = 0; v < NV; v++) {
            _mm512_storeu_ps(mixed + (i * NV + v) * BLOCK, out[i][v].even);
            _mm512_storeu_ps(mixed + (i * NV + v) * BLOCK + 16, out[i][v].odd);
        }
}

// `N` query heads over near keys. `partial`: of each head its highest score, its sum, and its values.
template <class I, int NV, int N>
INLINE void heads_over(const typename I::Item *query, const Near &near, Ahead &ahead, float scale, float *partial) {
    constexpr int STRIDE = 2 + NV * BLOCK;
    float scores[N * NEAR], kept[N], mixed[N * NV * BLOCK];
    score<I, NV, N>(query, near, ahead, scale, scores);
    for (int i = 0; i < N; i++) {
        kept[i] = share(scores + i * NEAR, near.count, partial[i * STRIDE], partial[i * STRIDE + 1]);
        std::memcpy(mixed + i * NV * BLOCK, partial + i * STRIDE + 2, 4 * NV * BLOCK);
    }
    mix<NV, N>(near, scores, kept, mixed);
    for (int i = 0; i < N; i++) std::memcpy(partial + i * STRIDE + 2, mixed + i * NV * BLOCK, 4 * NV * BLOCK);
}

template <class I, int NV>
INLINE void group_over(const typename I::Item *query, int group, const Near &near, Ahead &ahead, float scale, float *partial) {
    constexpr int N = NV <= 2 ? 4 : 2, ITEMS = NV * BLOCK, STRIDE = 2 + ITEMS;
    int head = 0;
    for (; head + N <= group; head += N)
        heads_over<I, NV, N>(query + head * ITEMS, near, ahead, scale, partial + head * STRIDE);
    if (N == 4 && head + 2 <= group) {
        heads_over<I, NV, 2>(query + head * ITEMS, near, ahead, scale, partial + head * STRIDE);
        head += 2;
    }
    for (; head < group; head++)
        heads_over<I, NV, 1>(query + head * ITEMS, near, ahead, scale, partial + head * STRIDE);
}

#endif

} // namespace
