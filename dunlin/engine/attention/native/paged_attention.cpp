// Attention of short rows over keys and values that lie anywhere in the KV cache, on the CPU.
//
// A plain C interface: it depends on no version of torch or Python, so it is built without either. Threads are those of
// the OpenMP runtime that the process has loaded (torch's), found by name.
//
// Work is cut into tasks: a block of a row's queries, with all heads, against a block of its keys. A task reads a slot's
// KV once, key after key, whether slots follow each other or not. There are more tasks than threads, each thread takes
// the next one, so a thread without a core holds up one task only. How a row is cut depends on the row alone, and the
// last task of a block of queries merges it in the order of keys: bits depend neither on threads nor on other rows.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#else
#define X86 0
#endif

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {

constexpr int BLOCK = 64;            // keys that are scored at once
constexpr int QUERY_BLOCK = 16;      // tokens of a task
constexpr int64_t DECODE_KEYS = 256; // keys of a task of few tokens: small, for there are few tasks
constexpr int64_t PREFILL_KEYS = 4096;
constexpr int FEW_TOKENS = 4;
constexpr int TILE = 8; // folded rows that share transposed keys
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

enum Dtype { F32 = 0, BF16 = 1 };
enum Level { PORTABLE = 0, AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3 };

#define INLINE static inline __attribute__((always_inline))

// A row of the table that Python passes, in this order.
struct Row {
    int64_t query, out, tokens, query_at, query_step, key_at, key_step, key_from, key_to, run_begin, run_count;
};

struct Call {
    const char *query;
    const char *kv;
    char *out;
    float *lse;
    const Row *rows;
    const int64_t *run_at, *run_slot;
    int64_t row_count, query_stride, slot_stride;
    int heads, kv_heads, dim, dtype, out_dtype, level;
    int64_t window; // a query sees so many of the last positions, its own included; 0: all
    float scale, cap;
    int group() const { return heads / kv_heads; }
};

struct Task {
    int32_t row, first, count, block; // queries [first, first + count) of the row; the block of queries that it is of
    int64_t from, to;                 // keys
    size_t scratch;                   // where its result lies, in floats
};

struct QueryBlock {
    int32_t first_task, tasks;
    std::atomic<int32_t> missing;
};

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
    float *mixed;      // [rows, dim], in the order of `place`
};

INLINE float from_bf16(uint16_t bits) {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

INLINE uint16_t to_bf16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, 4);
    if ((wide & 0x7fffffff) > 0x7f800000) return uint16_t((wide >> 16) | 64);
    return uint16_t((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
}

// exp of numbers that are not positive, within 2 ulp; 0 below -87. In a form that compilers make vectors of.
INLINE float exp_small(float x) {
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

// ---------------------------------------------------------------------------------------------- any processor

INLINE float load_one(const float *from) { return *from; }
INLINE float load_one(const uint16_t *from) { return from_bf16(*from); }

template <typename T> INLINE void portable_block(const HeadBlock &b) {
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

int same_place(int, int d) { return d; }

#if X86
__attribute__((target("avx2,fma"))) void avx2_f32(const HeadBlock &b) { portable_block<float>(b); }
__attribute__((target("avx2,fma"))) void avx2_bf16(const HeadBlock &b) { portable_block<uint16_t>(b); }

// ---------------------------------------------------------------------------------------------- AVX-512

#define TARGET512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define TARGETBF __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define INLINE512 static inline TARGET512 __attribute__((always_inline))
#define INLINEBF static inline TARGETBF __attribute__((always_inline))

// Sixteen vectors of partial sums to one vector of sums.
INLINE512 __m512 sum16(const __m512 *a) {
    __m512 quads[4];
    for (int i = 0; i < 4; i++) {
        const __m512 x =
            _mm512_add_ps(_mm512_unpacklo_ps(a[4 * i], a[4 * i + 1]), _mm512_unpackhi_ps(a[4 * i], a[4 * i + 1]));
        const __m512 y = _mm512_add_ps(_mm512_unpacklo_ps(a[4 * i + 2], a[4 * i + 3]),
                                       _mm512_unpackhi_ps(a[4 * i + 2], a[4 * i + 3]));
        const __m512d xd = _mm512_castps_pd(x), yd = _mm512_castps_pd(y);
        quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(xd, yd)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(xd, yd)));
    }
    const __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88),
                                   _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
    const __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88),
                                   _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}

INLINE512 __m512 exp512(__m512 x) {
    // Both keep what is no number.
    const __mmask16 seen = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    const __m512 limited = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(limited, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), limited);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_maskz_scalef_ps(seen, p, n);
}

// Absolute error below 1e-7; keeps what is no number.
INLINE512 __m512 tanh512(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f), sign = _mm512_set1_ps(-0.0f);
    const __m512 t = exp512(_mm512_mul_ps(_mm512_andnot_ps(sign, x), _mm512_set1_ps(-2.0f)));
    return _mm512_or_ps(_mm512_div_ps(_mm512_sub_ps(one, t), _mm512_add_ps(one, t)), _mm512_and_ps(sign, x));
}

// Scores of a row to shares in place; updates the row's highest score. Returns what its earlier sum is worth now.
INLINE512 float shares_of(const HeadBlock &b, int r) {
    float *scores = b.scores + r * BLOCK;
    const int groups = (b.count + 15) / 16;
    const __m512 scale = _mm512_set1_ps(b.scale), cap = _mm512_set1_ps(b.cap);
    const bool is_capped = b.cap != 0;
    const int hidden = b.hidden ? b.hidden[r] : 0;
    __m512 held[BLOCK / 16], high = _mm512_set1_ps(NOTHING);
    __mmask16 strange = 0;
    for (int i = 0; i < groups; i++) {
        const int left = b.visible[r] - 16 * i;
        __mmask16 seen = left >= 16 ? 0xffff : left <= 0 ? 0 : __mmask16((1u << left) - 1);
        if (hidden > 16 * i) seen &= hidden >= 16 * i + 16 ? 0 : __mmask16(0xffffu << (hidden - 16 * i));
        held[i] = _mm512_mask_mul_ps(_mm512_set1_ps(NOTHING), seen, _mm512_loadu_ps(scores + 16 * i), scale);
        if (is_capped) held[i] = _mm512_mask_mul_ps(held[i], seen, tanh512(_mm512_div_ps(held[i], cap)), cap);
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

// Towards the L2 cache: the next keys' and values' part of this head.
INLINE512 void prefetch_head(const HeadBlock &b, int from, int to) {
    const int bytes = int(b.value_bytes);
    for (int k = from; k < to; k++)
        for (int line = 0; line < bytes; line += 64) {
            _mm_prefetch(b.next[k] + b.key_offset + line, _MM_HINT_T1);
            _mm_prefetch(b.next[k] + b.value_offset + line, _MM_HINT_T1);
        }
}

// 16 vectors of 16 words each, transposed.
INLINE512 void transpose16(__m512i *a) {
    __m512i b[16];
    for (int i = 0; i < 8; i++) {
        b[2 * i] = _mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        a[4 * i] = _mm512_unpacklo_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 1] = _mm512_unpackhi_epi64(b[4 * i], b[4 * i + 2]);
        a[4 * i + 2] = _mm512_unpacklo_epi64(b[4 * i + 1], b[4 * i + 3]);
        a[4 * i + 3] = _mm512_unpackhi_epi64(b[4 * i + 1], b[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        b[4 + i] = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        b[8 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        b[12 + i] = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0x88);
        a[4 + i] = _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0x88);
        a[8 + i] = _mm512_shuffle_i32x4(b[i], b[8 + i], 0xdd);
        a[12 + i] = _mm512_shuffle_i32x4(b[4 + i], b[12 + i], 0xdd);
    }
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
    for (; r + TILE <= b.rows; r += TILE) score_tile_f32<NV, TILE>(b, r, at, words);
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

// Arithmetic in fp32 over keys and values `T`. NV: vectors of 16 numbers in a head.
template <int NV, typename T> TARGET512 void avx512_f32(const HeadBlock &b) {
    for (int at = 0; at < b.count; at += 16) {
        if (b.rows < 4) score_few_f32<NV, T>(b, at);
        else score_many_f32<NV, T>(b, at);
        if (b.next) prefetch_head(b, std::min(at, b.next_count), std::min(at + 16, b.next_count));
    }
    const T *values[BLOCK];
    for (int k = 0; k < b.count; k++) values[k] = reinterpret_cast<const T *>(b.keys[k] + b.value_offset);
    if (sizeof(T) == sizeof(float) || b.rows < TILE) return mix_f32<NV>(b, values);
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

// Mixes values into `N` rows. Values of two keys are interleaved for the dot product: `bf16_place` undoes the order.
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
    for (; r + TILE <= b.rows; r += TILE) score_tile<NV, TILE>(b, r, at, words);
    for (; r + 2 <= b.rows; r += 2) score_tile<NV, 2>(b, r, at, words);
    for (; r < b.rows; r++) score_tile<NV, 1>(b, r, at, words);
}

// NV: vectors of 32 numbers in a head.
template <int NV> TARGETBF void avx512_bf16(const HeadBlock &b) {
    constexpr int N = NV <= 2 ? 4 : 2;
    for (int at = 0; at < b.count; at += 16) {
        if (b.rows < 4) score_few<NV>(b, at);
        else score_many<NV>(b, at);
        if (b.next) prefetch_head(b, std::min(at, b.next_count), std::min(at + 16, b.next_count));
    }
    uint32_t shares[QUERY_BLOCK * 16 * (BLOCK / 2)];
    float kept[QUERY_BLOCK * 16];
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
    int r = 0;
    for (; r + N <= b.rows; r += N) mix_tile<NV, N>(b, r, shares, kept);
    if (N == 4 && r + 2 <= b.rows) mix_tile<NV, 2>(b, r, shares, kept), r += 2;
    for (; r < b.rows; r++) mix_tile<NV, 1>(b, r, shares, kept);
}

// Where dimension d lies in what `mix_tile` makes.
int bf16_place(int, int d) {
    const int chunk = d / 32, lane = d % 32 / 8, j = d % 8;
    return chunk * 32 + (j / 4) * 16 + lane * 4 + j % 4;
}
#endif

// ---------------------------------------------------------------------------------------------- one task

struct Kernel {
    void (*block)(const HeadBlock &);
    int (*place)(int dim, int d);
    bool widens = false; // queries in bf16 are given in fp32
};

Kernel choose(const Call &call) {
#if X86
    if (call.dtype == BF16 && call.level >= AVX512_BF16 && __builtin_cpu_supports("avx512bf16") &&
        call.group() <= 16) {
        if (call.dim == 32) return {avx512_bf16<1>, bf16_place};
        if (call.dim == 64) return {avx512_bf16<2>, bf16_place};
        if (call.dim == 96) return {avx512_bf16<3>, bf16_place};
        if (call.dim == 128) return {avx512_bf16<4>, bf16_place};
    }
    if (call.level >= AVX512 && __builtin_cpu_supports("avx512dq")) {
        const bool is_bf16 = call.dtype == BF16;
        if (call.dim == 32) return {is_bf16 ? avx512_f32<2, uint16_t> : avx512_f32<2, float>, same_place, is_bf16};
        if (call.dim == 64) return {is_bf16 ? avx512_f32<4, uint16_t> : avx512_f32<4, float>, same_place, is_bf16};
        if (call.dim == 96) return {is_bf16 ? avx512_f32<6, uint16_t> : avx512_f32<6, float>, same_place, is_bf16};
        if (call.dim == 128) return {is_bf16 ? avx512_f32<8, uint16_t> : avx512_f32<8, float>, same_place, is_bf16};
    }
    if (call.level >= AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return {call.dtype == BF16 ? avx2_bf16 : avx2_f32, same_place};
#endif
    return {call.dtype == BF16 ? portable_bf16 : portable_f32, same_place};
}

// Slots of keys [from, to) of a row, one key after another.
struct KeyWalk {
    const Call &call;
    const int64_t *run_at, *run_slot;
    int64_t runs, run, key, to;

    KeyWalk(const Call &c, const Row &row, int64_t from, int64_t stop)
        : call(c), run_at(c.run_at + row.run_begin), run_slot(c.run_slot + row.run_begin), runs(row.run_count),
          run(std::upper_bound(run_at, run_at + runs, from) - run_at - 1), key(from), to(stop) {}

    // Fills in the next keys, up to BLOCK; the rest of a group of 16 repeats the last: masked, and always finite.
    int next(const char **keys) {
        int count = 0;
        while (count < BLOCK && key < to) {
            if (run + 1 < runs && run_at[run + 1] == key) run++;
            keys[count++] = call.kv + (run_slot[run] + key - run_at[run]) * call.slot_stride;
            key++;
        }
        for (int i = count; i % 16; i++) keys[i] = keys[count - 1];
        return count;
    }
};

int64_t count_seen(const Row &row, int64_t token) {
    const int64_t position = row.query_at + token * row.query_step;
    if (position < row.key_at) return 0;
    return std::min((position - row.key_at) / row.key_step + 1, row.key_to);
}

// How many of a row's keys are before the window of a token.
int64_t count_hidden(const Row &row, int64_t token, int64_t window) {
    if (!window) return 0;
    const int64_t first = row.query_at + token * row.query_step - window + 1; // the first position that it sees
    if (first <= row.key_at) return 0;
    return std::min((first - row.key_at - 1) / row.key_step + 1, row.key_to);
}

// A task's part of the scratch: high [heads x tokens], sum, mixed.
struct Part {
    float *high, *sum, *mixed;
    Part(float *at, size_t rows) : high(at), sum(at + rows), mixed(at + 2 * rows) {}
    static size_t floats(size_t rows, int dim) { return rows * (dim + 2); }
};

void widen(const uint16_t *from, float *to, int count) {
    for (int i = 0; i < count; i++) to[i] = from_bf16(from[i]);
}

void compute_task(const Call &call, const Kernel &kernel, const Task &task, float *scratch) {
    const Row &row = call.rows[task.row];
    const int group = call.group(), rows = task.count * group, dim = call.dim;
    const size_t item = call.dtype == BF16 ? 2 : 4, all = size_t(task.count) * call.heads;
    Part part(scratch + task.scratch, all);
    std::fill(part.high, part.high + all, NOTHING);
    std::fill(part.sum, part.sum + all * (dim + 1), 0.0f);

    static thread_local std::vector<char> packed;
    static thread_local std::vector<float> scores;
    const size_t query_item = kernel.widens ? sizeof(float) : item;
    packed.resize(all * dim * query_item);
    scores.resize(size_t(rows) * BLOCK);
    const size_t span = size_t(group) * dim * item; // of a token, in a KV head
    for (int head = 0; head < call.kv_heads; head++)
        for (int t = 0; t < task.count; t++) {
            const char *from = call.query + (row.query + task.first + t) * call.query_stride * item + head * span;
            char *to = packed.data() + (size_t(head) * task.count + t) * group * dim * query_item;
            if (kernel.widens) widen(reinterpret_cast<const uint16_t *>(from), reinterpret_cast<float *>(to), group * dim);
            else std::memcpy(to, from, span);
        }

    const char *keys[2][BLOCK];
    static thread_local std::vector<int> hidden;
    if (call.window) hidden.resize(rows);
    int visible[QUERY_BLOCK * 16], counts[2];
    std::vector<int> many;
    int *seen = visible;
    if (rows > QUERY_BLOCK * 16) many.resize(rows), seen = many.data();
    KeyWalk walk(call, row, task.from, task.to);
    counts[0] = walk.next(keys[0]);
    int64_t at = task.from;
    for (int turn = 0; counts[turn]; turn ^= 1) {
        counts[turn ^ 1] = walk.next(keys[turn ^ 1]);
        for (int t = 0; t < task.count; t++) {
            const int64_t left = count_seen(row, task.first + t) - at;
            std::fill(seen + t * group, seen + (t + 1) * group, int(std::max<int64_t>(std::min<int64_t>(left, counts[turn]), 0)));
            if (!call.window) continue;
            const int64_t before = count_hidden(row, task.first + t, call.window) - at;
            std::fill(hidden.begin() + t * group, hidden.begin() + (t + 1) * group, int(std::max<int64_t>(std::min<int64_t>(before, counts[turn]), 0)));
        }
        for (int head = 0; head < call.kv_heads; head++) {
            const size_t offset = size_t(head) * dim * item;
            const HeadBlock b{keys[turn], counts[turn ^ 1] ? keys[turn ^ 1] : nullptr, counts[turn], counts[turn ^ 1],
                              offset, offset + size_t(call.kv_heads) * dim * item, dim * item,
                              packed.data() + size_t(head) * task.count * group * dim * query_item, seen,
                              call.window ? hidden.data() : nullptr, rows, dim, call.scale, call.cap, scores.data(), part.high + size_t(head) * rows,
                              part.sum + size_t(head) * rows, part.mixed + size_t(head) * rows * dim};
            kernel.block(b);
        }
        at += counts[turn];
    }
}

// Merges a block of queries' tasks in order of keys, and writes it.
void merge_tasks(const Call &call, const Kernel &kernel, const Task *tasks, int count, const float *scratch) {
    const Task &first = tasks[0];
    const Row &row = call.rows[first.row];
    const int group = call.group(), dim = call.dim;
    const size_t all = size_t(first.count) * call.heads;
    int places[512];
    for (int d = 0; d < dim; d++) places[d] = kernel.place(dim, d);
    std::vector<float> out(dim);
    for (size_t r = 0; r < all; r++) {
        float high = NOTHING, sum = 0;
        for (int i = 0; i < count; i++)
            high = std::max(high, Part(const_cast<float *>(scratch) + tasks[i].scratch, all).high[r]);
        std::fill(out.begin(), out.end(), 0.0f);
        for (int i = 0; i < count; i++) {
            const Part part(const_cast<float *>(scratch) + tasks[i].scratch, all);
            if (part.high[r] == NOTHING) continue;
            const float share = part.high[r] == high ? 1.0f : std::exp(part.high[r] - high);
            sum += part.sum[r] * share;
            const float *mixed = part.mixed + r * dim;
            for (int d = 0; d < dim; d++) out[d] += mixed[d] * share;
        }
        const size_t head = r / (size_t(first.count) * group), t = r / group % first.count, g = r % group;
        const size_t at = (row.out + first.first + t) * call.heads + head * group + g;
        const float scale = sum == 0 ? 0.0f : 1.0f / sum;
        call.lse[at] = sum == 0 ? NOTHING : high + std::log(sum);
        if (call.out_dtype == BF16)
            for (int d = 0; d < dim; d++) reinterpret_cast<uint16_t *>(call.out)[at * dim + d] = to_bf16(out[places[d]] * scale);
        else
            for (int d = 0; d < dim; d++) reinterpret_cast<float *>(call.out)[at * dim + d] = out[places[d]] * scale;
    }
}

struct Work {
    const Call *call;
    Kernel kernel;
    const std::vector<Task> *tasks;
    std::vector<QueryBlock> *blocks;
    float *scratch;
    std::atomic<size_t> next;
};

void take_tasks(void *data) {
    Work &work = *static_cast<Work *>(data);
    for (;;) {
        const size_t at = work.next.fetch_add(1, std::memory_order_relaxed);
        if (at >= work.tasks->size()) return;
        const Task &task = (*work.tasks)[at];
        compute_task(*work.call, work.kernel, task, work.scratch);
        QueryBlock &block = (*work.blocks)[task.block];
        if (block.missing.fetch_sub(1, std::memory_order_acq_rel) == 1)
            merge_tasks(*work.call, work.kernel, work.tasks->data() + block.first_task, block.tasks, work.scratch);
    }
}

// Every block of queries gets at least one task, so that every query has a result.
size_t cut_tasks(const Call &call, std::vector<Task> &tasks, std::vector<std::pair<int32_t, int32_t>> &blocks) {
    size_t floats = 0;
    for (int64_t r = 0; r < call.row_count; r++) {
        const Row &row = call.rows[r];
        const int64_t width = row.tokens <= FEW_TOKENS ? DECODE_KEYS : PREFILL_KEYS;
        for (int64_t first = 0; first < row.tokens; first += QUERY_BLOCK) {
            const int32_t count = int32_t(std::min<int64_t>(QUERY_BLOCK, row.tokens - first));
            const int64_t end = std::max(count_seen(row, first + count - 1), row.key_from);
            const int32_t before = int32_t(tasks.size()), block = int32_t(blocks.size());
            int64_t from = std::min(std::max(row.key_from, count_hidden(row, first, call.window)), end);
            do {
                const int64_t to = std::min(from + width, end);
                tasks.push_back({int32_t(r), int32_t(first), count, block, from, to, floats});
                floats += Part::floats(size_t(count) * call.heads, call.dim);
                from = to;
            } while (from < end);
            blocks.push_back({before, int32_t(tasks.size()) - before});
        }
    }
    return floats;
}

} // namespace

extern "C" {

#pragma GCC visibility push(default)

const char *dunlin_source_digest() { return SOURCE_DIGEST; }

// The highest level of instructions that this processor has.
int dunlin_level() {
#if X86
    if (__builtin_cpu_supports("avx512bf16")) return AVX512_BF16;
    if (__builtin_cpu_supports("avx512dq")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PORTABLE;
}

// Strides are in numbers. `rows` is [row_count, 11] as in `Row`. `window`, `cap`: 0 for none; `scale`: 0 for the root of
// `dim`. Returns 0; 1 for a shape that it cannot compute.
int dunlin_paged_attention(const void *query, const void *kv, void *out, float *lse, const int64_t *rows,
                           const int64_t *run_at, const int64_t *run_slot, int64_t row_count, int64_t query_stride,
                           int64_t slot_stride, int heads, int kv_heads, int dim, int dtype, int out_dtype, int level,
                           int threads, int64_t window, float scale, float cap) {
    if (kv_heads < 1 || heads % kv_heads || dim < 1 || dim > 512) return 1;
    const size_t item = dtype == BF16 ? 2 : 4;
    const Call call{static_cast<const char *>(query), static_cast<const char *>(kv), static_cast<char *>(out), lse,
                    reinterpret_cast<const Row *>(rows), run_at, run_slot, row_count, query_stride,
                    int64_t(slot_stride * item), heads, kv_heads, dim, dtype, out_dtype, level, window,
                    scale != 0 ? scale : 1.0f / std::sqrt(float(dim)), cap};
    static thread_local std::vector<Task> tasks;
    static thread_local std::vector<std::pair<int32_t, int32_t>> cuts;
    static thread_local std::vector<float> scratch;
    tasks.clear();
    cuts.clear();
    const size_t floats = cut_tasks(call, tasks, cuts);
    if (scratch.size() < floats) scratch.resize(floats);
    std::vector<QueryBlock> blocks(cuts.size());
    for (size_t i = 0; i < cuts.size(); i++) {
        blocks[i].first_task = cuts[i].first;
        blocks[i].tasks = cuts[i].second;
        blocks[i].missing.store(cuts[i].second, std::memory_order_relaxed);
    }
    Work work{&call, choose(call), &tasks, &blocks, scratch.data(), {}};
    const unsigned useful = unsigned(std::min<size_t>(threads, tasks.size()));
    if (useful > 1 && GOMP_parallel) GOMP_parallel(take_tasks, &work, useful, 0);
    else take_tasks(&work);
    return 0;
}

#pragma GCC visibility pop
}
