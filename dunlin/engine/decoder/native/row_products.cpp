// Row-wise work of batches of few tokens in bf16, on processors with AVX-512 BF16: products with weights, norms, and the
// gate of an MLP. Such batches are limited by reading the weights, and by the calls.
//
// A plain C interface: it depends on no version of torch or Python, so it is built without either. Threads are those of
// the OpenMP runtime that the process has loaded (torch's), found by name.
//
// A product is cut into tasks of a few columns of the result; each thread takes the next one, so a thread without a core
// holds up one task only. A result's bits depend on its own row and column alone: every sum is over the inputs in order.

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

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {

constexpr int64_t TASK_BYTES = 32768; // of weights: small, for a thread may be late
constexpr int COLUMNS = 4;            // of a product that are computed at once
constexpr int64_t ALONE_BYTES = 65536; // smaller products are not worth another thread

struct Product {
    const uint16_t *rows, *weight, *bias; // the bias may be null
    uint16_t *out;
    int64_t count, columns, inputs, row_stride;
    int64_t width; // columns of a task
    std::atomic<int64_t> next;
};

#if X86

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE float wide(uint16_t bits) {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

INLINE uint16_t narrow(float value) {
    uint32_t word;
    std::memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return uint16_t((word >> 16) | 64);
    return uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

INLINE __m512bh load(const uint16_t *from) { return (__m512bh)_mm512_loadu_si512(from); }

INLINE __m512bh load_some(const uint16_t *from, __mmask32 mask) {
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, from);
}

INLINE __m512 wide16(const uint16_t *from, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

INLINE void store16(uint16_t *to, __m512 value, __mmask16 mask) {
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

INLINE __mmask16 mask_of(int64_t left) { return left >= 16 ? 0xffff : __mmask16((1u << left) - 1); }

// The four vectors' sums.
INLINE __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d) {
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// `ROWS` rows from `first` against columns [column, column + 4); the caller sees to it that these exist.
template <int ROWS> INLINE void tile(const Product &p, int64_t first, int64_t column) {
    __m512 total[ROWS][COLUMNS];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) total[r][c] = _mm512_setzero_ps();
    const uint16_t *weight = p.weight + column * p.inputs, *rows = p.rows + first * p.row_stride;
    int64_t at = 0;
    for (; at + 32 <= p.inputs; at += 32) {
        __m512bh w[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) w[c] = load(weight + c * p.inputs + at);
        for (int r = 0; r < ROWS; r++) {
            const __m512bh x = load(rows + r * p.row_stride + at);
            for (int c = 0; c < COLUMNS; c++) total[r][c] = _mm512_dpbf16_ps(total[r][c], x, w[c]);
        }
    }
    if (at < p.inputs) {
        const __mmask32 mask = __mmask32((1ull << (p.inputs - at)) - 1);
        for (int r = 0; r < ROWS; r++) {
            const __m512bh x = load_some(rows + r * p.row_stride + at, mask);
            for (int c = 0; c < COLUMNS; c++)
                total[r][c] = _mm512_dpbf16_ps(total[r][c], x, load_some(weight + c * p.inputs + at, mask));
        }
    }
    for (int r = 0; r < ROWS; r++) {
        float result[COLUMNS];
        _mm_storeu_ps(result, sums(total[r][0], total[r][1], total[r][2], total[r][3]));
        for (int c = 0; c < COLUMNS; c++) {
            float value = result[c];
            if (p.bias) value += wide(p.bias[column + c]);
            p.out[(first + r) * p.columns + column + c] = narrow(value);
        }
    }
}

TARGET void rows_of_columns(const Product &p, int64_t column) {
    int64_t row = 0;
    for (; row + 6 <= p.count; row += 6) tile<6>(p, row, column);
    switch (p.count - row) {
    case 5: tile<5>(p, row, column); break;
    case 4: tile<4>(p, row, column); break;
    case 3: tile<3>(p, row, column); break;
    case 2: tile<2>(p, row, column); break;
    case 1: tile<1>(p, row, column); break;
    }
}

TARGET void take_columns(void *data) {
    Product &p = *static_cast<Product *>(data);
    for (;;) {
        const int64_t from = p.next.fetch_add(p.width, std::memory_order_relaxed);
        if (from >= p.columns) return;
        const int64_t to = std::min(from + p.width, p.columns);
        for (int64_t column = from; column < to; column += COLUMNS) rows_of_columns(p, column);
    }
}

// out = x / sqrt(mean(x^2) + epsilon) * weight, in fp32.
TARGET void norm_row(const uint16_t *x, const uint16_t *weight, uint16_t *out, int64_t width, float epsilon) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t at = 0; at < width; at += 16) {
        const __m512 value = wide16(x + at, mask_of(width - at));
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(width) + epsilon));
    for (int64_t at = 0; at < width; at += 16) {
        const __mmask16 mask = mask_of(width - at);
        const __m512 value = _mm512_mul_ps(_mm512_mul_ps(wide16(x + at, mask), scale), wide16(weight + at, mask));
        store16(out + at, value, mask);
    }
}

// The pairs (x[d], x[d + half]) of one head turned by their angles; `turn` is [2, half] fp32: cosines, sines.
TARGET void turn_head(uint16_t *head, const float *turn, int64_t half) {
    for (int64_t at = 0; at < half; at += 16) {
        const __mmask16 mask = mask_of(half - at);
        const __m512 a = wide16(head + at, mask), b = wide16(head + half + at, mask);
        const __m512 cosine = _mm512_maskz_loadu_ps(mask, turn + at), sine = _mm512_maskz_loadu_ps(mask, turn + half + at);
        store16(head + at, _mm512_sub_ps(_mm512_mul_ps(a, cosine), _mm512_mul_ps(b, sine)), mask);
        store16(head + half + at, _mm512_add_ps(_mm512_mul_ps(b, cosine), _mm512_mul_ps(a, sine)), mask);
    }
}

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

// out = silu(gate) * up of a row [gate, up], each `width` wide; the gate is rounded before, as torch's result is.
TARGET void gate_row(const uint16_t *row, uint16_t *out, int64_t width) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t at = 0; at < width; at += 16) {
        const __mmask16 mask = mask_of(width - at);
        const __m512 gate = wide16(row + at, mask), up = wide16(row + width + at, mask);
        const __m512 open = _mm512_div_ps(gate, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate))));
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(open);
        const __m512 again = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
        store16(out + at, _mm512_mul_ps(again, up), mask);
    }
}

#endif

} // namespace

extern "C" {

#pragma GCC visibility push(default)

const char *dunlin_source_digest() { return SOURCE_DIGEST; }

// 0: this processor cannot; 1: it can; 2: it also has AMX, which multiplies more than a few rows faster.
int dunlin_level() {
#if X86
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return 0;
    return __builtin_cpu_supports("amx-bf16") ? 2 : 1;
#else
    return 0;
#endif
}

#if X86

// out[count, columns] = rows[count, inputs] @ weight[columns, inputs]^T + bias. `columns` is a multiple of 4; strides are
// in numbers.
void dunlin_product(const void *rows, const void *weight, const void *bias, void *out, int64_t count, int64_t columns,
                    int64_t inputs, int64_t row_stride, int threads) {
    const int64_t fitting = TASK_BYTES / std::max<int64_t>(2 * inputs, 1) / COLUMNS * COLUMNS;
    Product p{static_cast<const uint16_t *>(rows), static_cast<const uint16_t *>(weight),
              static_cast<const uint16_t *>(bias), static_cast<uint16_t *>(out), count, columns, inputs, row_stride,
              std::max<int64_t>(fitting, COLUMNS), {}};
    const int64_t tasks = (columns + p.width - 1) / p.width;
    const unsigned useful = 2 * columns * inputs < ALONE_BYTES ? 1 : unsigned(std::min<int64_t>(threads, tasks));
    if (useful > 1 && GOMP_parallel) GOMP_parallel(take_columns, &p, useful, 0);
    else take_columns(&p);
}

void dunlin_norm(const void *rows, const void *weight, void *out, int64_t count, int64_t width, int64_t row_stride,
                 float epsilon) {
    for (int64_t row = 0; row < count; row++)
        norm_row(static_cast<const uint16_t *>(rows) + row * row_stride, static_cast<const uint16_t *>(weight),
                 static_cast<uint16_t *>(out) + row * width, width, epsilon);
}

void dunlin_gate(const void *rows, void *out, int64_t count, int64_t width) {
    for (int64_t row = 0; row < count; row++)
        gate_row(static_cast<const uint16_t *>(rows) + 2 * row * width, static_cast<uint16_t *>(out) + row * width, width);
}

// Turn the first `heads` heads of each row [heads, dim] in place, each in its first `turned` numbers.
void dunlin_turn(void *rows, const float *turn, int64_t count, int64_t heads, int64_t dim, int64_t turned,
                 int64_t row_stride) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t head = 0; head < heads; head++)
            turn_head(static_cast<uint16_t *>(rows) + row * row_stride + head * dim, turn + row * turned, turned / 2);
}

#endif

#pragma GCC visibility pop
}
