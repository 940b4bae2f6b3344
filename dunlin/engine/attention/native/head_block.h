// A block of keys against a task's queries of one KV head, computed as on any processor.

#pragma once

#include "bf16.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

constexpr int BLOCK = 64;      // keys that are scored at once
constexpr int MOST_DIM = 512;
constexpr int MOST_ROWS = 256; // of a task in a KV head, where a kernel has room for so many
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// What one (KV head, block of keys) needs. `rows` = tokens x group query rows of this head; `visible[row]` of the
// `count` keys are seen by a row. `keys[i]` is slot i's KV; entries up to the next multiple of 16 may be read.
struct HeadBlock {
    const char *const *keys;
    const char *const *next; // keys to prefetch, or null
    int count, next_count;
    size_t key_offset, value_offset, value_bytes; // bytes; of one head's key, or value
    const char *query;               // [rows, dim], in fp32 where the kernel computes so
    const int *visible;
    const int *hidden; // of the visible keys, so many of the first are before a row's window; null: there is no window
    int rows, dim;
    float scale, cap;
    float *scores;     // [rows, BLOCK]
    float *high, *sum; // [rows]
    float *mixed;      // [rows, dim], in the kernel's order
};

// Towards the L2 cache: the part of this head of the next keys [from, to) and their values.
INLINE_ANY void prefetch_head(const HeadBlock &b, int from, int to) {
    for (int k = from; k < to; k++)
        for (size_t line = 0; line < b.value_bytes; line += 64) {
            __builtin_prefetch(b.next[k] + b.key_offset + line, 0, 2);
            __builtin_prefetch(b.next[k] + b.value_offset + line, 0, 2);
        }
}

// exp of numbers that are not positive, within 2 ulp; 0 below -87. In a form that compilers make vectors of.
INLINE_ANY float exp_small(float x) {
    const float limited = x < -87.0f ? -87.0f : x;
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    const float shifted = limited * 1.44269504f + magic;
    const float n = shifted - magic;
    const float r = (limited - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    std::memcpy(&bits, &shifted, 4);
    const int32_t exponent = (bits + 127) << 23;
    float power;
    std::memcpy(&power, &exponent, 4);
    return x < -87.0f ? 0.0f : p * power;
}

INLINE_ANY float load_one(const float *from) { return *from; }
INLINE_ANY float load_one(const uint16_t *from) { return from_bf16(*from); }

template <typename T> INLINE_ANY void portable_block(const HeadBlock &b) {
    const int dim = b.dim;
    constexpr int LANES = 16;
    for (int r = 0; r < b.rows; r++) {
        const T *query = reinterpret_cast<const T *>(b.query) + size_t(r) * dim;
        float *scores = b.scores + r * BLOCK;
        float high = NOTHING;
        const int first = b.hidden ? b.hidden[r] : 0;
        for (int k = first; k < b.visible[r]; k++) {
            const T *key = reinterpret_cast<const T *>(b.keys[k] + b.key_offset);
            float lanes[LANES] = {0};
            int d = 0;
            for (; d + LANES <= dim; d += LANES)
                for (int j = 0; j < LANES; j++) lanes[j] += load_one(query + d + j) * load_one(key + d + j);
            for (int width = LANES / 2; width; width /= 2)
                for (int j = 0; j < width; j++) lanes[j] += lanes[j + width];
            for (; d < dim; d++) lanes[0] += load_one(query + d) * load_one(key + d);
            scores[k] = lanes[0] * b.scale;
            if (b.cap != 0) scores[k] = b.cap * std::tanh(scores[k] / b.cap);
            if (scores[k] > high || scores[k] != scores[k]) high = scores[k]; // what is no number stays none
        }
        if (high == NOTHING) continue;
        const float highest = std::max(high, b.high[r]);
        const float kept = exp_small(b.high[r] - highest);
        float *mixed = b.mixed + size_t(r) * dim;
        for (int d = 0; d < dim; d++) mixed[d] *= kept;
        float sum = b.sum[r] * kept;
        for (int k = first; k < b.visible[r]; k++) scores[k] = exp_small(scores[k] - highest);
        for (int k = first; k < b.visible[r]; k++) {
            const T *value = reinterpret_cast<const T *>(b.keys[k] + b.value_offset);
            const float share = scores[k];
            sum += share;
            for (int d = 0; d < dim; d++) mixed[d] += share * load_one(value + d);
        }
        b.sum[r] = sum;
        b.high[r] = highest;
    }
}

void portable_f32(const HeadBlock &b) { portable_block<float>(b); }
void portable_bf16(const HeadBlock &b) { portable_block<uint16_t>(b); }

#if X86
// For heads of any width, by a compiler's vectors.
__attribute__((target("avx2,fma"))) void avx2_any_f32(const HeadBlock &b) { portable_block<float>(b); }
__attribute__((target("avx2,fma"))) void avx2_any_bf16(const HeadBlock &b) { portable_block<uint16_t>(b); }
#endif

} // namespace
