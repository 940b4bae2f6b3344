// The linear work of batches of many tokens in bf16, on processors with AVX-512: products with weights, norms, the gate
// of an MLP, rotation, and writing KV. Limited by arithmetic, and by passing over the tokens' numbers.
//
// A plain C interface: it depends on no version of torch or Python, so it is built without either. Threads are those of
// the OpenMP runtime that the process has loaded (torch's), found by name.
//
// A product multiplies in fp32, in bf16 pairs where the processor can, or by its matrix unit (tiles.h). In the first two
// ways vectors lie along the rows: panels hold 32 rows, input after input, and each weight is broadcast to all of them. So
// weights stay as they lie: no other layout of them has to be kept, and a slice of columns is a slice. A task is some columns
// with all rows; it copies their weights into its thread's cache block by block (widened to fp32 where it multiplies in
// fp32). There are more tasks than threads and each thread takes the next one, so a thread without a core holds up one task
// only. A result's bits depend on its own row and column alone: every sum is over the inputs in order.

#include "../../attention/native/room.h"
#include "tiles.h"

#include <atomic>
#include <cmath>
#include <cstring>

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {

// Calls `task(i)` for every i below `count`, each thread the next one.
template <typename Task> struct Shared {
    const Task &task;
    int64_t count;
    std::atomic<int64_t> next;
};

template <typename Task> void take_tasks(void *data) {
    auto &shared = *static_cast<Shared<Task> *>(data);
    for (;;) {
        const int64_t at = shared.next.fetch_add(1, std::memory_order_relaxed);
        if (at >= shared.count) return;
        shared.task(at);
    }
}

template <typename Task> void for_each(int64_t count, int threads, const Task &task) {
    Shared<Task> shared{task, count, {}};
    const unsigned useful = unsigned(std::min<int64_t>(threads, count));
    if (useful > 1 && GOMP_parallel) GOMP_parallel(take_tasks<Task>, &shared, useful, 0);
    else take_tasks<Task>(&shared);
}

#if X86

constexpr int LANES = 16;         // rows of a vector
constexpr int PANEL = 2 * LANES;  // rows of a panel
constexpr int STRIP = 12;         // columns that are computed at once
constexpr int DEPTH = 192;        // items of a block: a panel of them stays in the L1 cache
constexpr int DEPTH_ROOM = DEPTH + LANES; // from one column's weights to the next's: not all in the same cache set
constexpr int WIDTH = 4 * STRIP;  // columns of a task, at most
constexpr int64_t CHUNK = 512;    // rows of a pass over the weights
constexpr int TASKS = 8;          // for each thread, at least

INLINE __mmask16 mask16(int64_t left) { return left >= 16 ? 0xffff : left <= 0 ? 0 : __mmask16((1u << left) - 1); }

// ---------------------------------------------------------------------------------------------- arithmetic

// An item is one input as fp32.
struct Single {
    static constexpr int INPUTS = 1;
    INLINE __m512i load(const uint16_t *from, int64_t left) { return _mm512_castps_si512(wide16(from, mask16(left))); }
};

// An item is two inputs as bf16.
struct Pair {
    static constexpr int INPUTS = 2;
    INLINE __m512i load(const uint16_t *from, int64_t left) {
        const __mmask32 mask = left >= 32 ? 0xffffffffu : left <= 0 ? 0 : __mmask32((1ull << left) - 1);
        return _mm512_maskz_loadu_epi16(mask, from);
    }
};

// `VECTORS` vectors of rows against `STRIP` columns, added to `sums` [STRIP][step]. Half a panel is fetched from `next`.
#define MULTIPLY(NAME, TARGETED, MULTIPLY_ADD)                                                                         \
    template <int VECTORS>                                                                                            \
    TARGETED void NAME(const uint32_t *panel, const uint32_t *weights, int depth, float *sums, int64_t step,          \
                       const uint32_t *next) {                                                                        \
        __m512 total[VECTORS][STRIP];                                                                                 \
        _Pragma("GCC unroll 16") for (int c = 0; c < STRIP; c++)                                                      \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                                 \
                total[v][c] = _mm512_loadu_ps(sums + c * step + v * LANES);                                           \
        for (int at = 0; at < depth; at++) {                                                                          \
            __m512i rows[VECTORS];                                                                                    \
            _mm_prefetch(reinterpret_cast<const char *>(next + at * LANES), _MM_HINT_T1);                             \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                                 \
                rows[v] = _mm512_loadu_si512(panel + at * PANEL + v * LANES);                                         \
            _Pragma("GCC unroll 16") for (int c = 0; c < STRIP; c++) {                                                \
                const __m512i weight = _mm512_set1_epi32(int32_t(weights[c * DEPTH_ROOM + at]));                      \
                _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                             \
                    total[v][c] = MULTIPLY_ADD(rows[v], weight, total[v][c]);                                         \
            }                                                                                                         \
        }                                                                                                             \
        _Pragma("GCC unroll 16") for (int c = 0; c < STRIP; c++)                                                      \
            _Pragma("GCC unroll 2") for (int v = 0; v < VECTORS; v++)                                                 \
                _mm512_storeu_ps(sums + c * step + v * LANES, total[v][c]);                                           \
    }

INLINE __m512 add_single(__m512i row, __m512i weight, __m512 total) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(row), _mm512_castsi512_ps(weight), total);
}
INLINE __m512 add_pair(__m512i row, __m512i weight, __m512 total) {
    return _mm512_dpbf16_ps(total, (__m512bh)row, (__m512bh)weight);
}
// The same in fp32, for processors without it: what tests compute where there is nothing else.
INLINE __m512 add_pair_slowly(__m512i row, __m512i weight, __m512 total) {
    const __m512i high = _mm512_set1_epi32(int32_t(0xffff0000));
    total = add_single(_mm512_slli_epi32(row, 16), _mm512_slli_epi32(weight, 16), total);
    return add_single(_mm512_and_si512(row, high), _mm512_and_si512(weight, high), total);
}

MULTIPLY(multiply_single, TARGET, add_single)
MULTIPLY(multiply_pair, TARGET, add_pair)
MULTIPLY(multiply_pair_slowly, TARGET, add_pair_slowly)

using Multiply = void (*)(const uint32_t *, const uint32_t *, int, float *, int64_t, const uint32_t *);

// ---------------------------------------------------------------------------------------------- products

struct Product {
    const uint16_t *rows, *weight, *bias, *residual; // the last two may be null; only tiles add a residual
    uint16_t *out;
    int64_t count, columns, inputs, row_stride, out_stride;
};

int64_t cut(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// The rows of a chunk, in blocks of `DEPTH` items: [block][panel][item][PANEL].
struct Panels {
    uint32_t *items;
    int64_t panels, depth;
    uint32_t *at(int64_t block, int64_t panel) const {
        return items + (block * DEPTH * panels + panel * std::min<int64_t>(DEPTH, depth - block * DEPTH)) * PANEL;
    }
};

template <class I> TARGET void pack_panel(const Product &p, const Panels &to, int64_t panel) {
    for (int64_t item = 0; item < to.depth; item += LANES) {
        const int64_t block = item / DEPTH, left = p.inputs - item * I::INPUTS;
        uint32_t *place = to.at(block, panel) + (item - block * DEPTH) * PANEL;
        const int held = int(std::min<int64_t>(LANES, to.depth - item));
        for (int half = 0; half < PANEL; half += LANES) {
            __m512i words[LANES];
            for (int i = 0; i < LANES; i++) {
                const int64_t row = panel * PANEL + half + i;
                words[i] = row < p.count ? I::load(p.rows + row * p.row_stride + item * I::INPUTS, left)
                                         : _mm512_setzero_si512();
            }
            transpose16(words);
            for (int i = 0; i < held; i++) _mm512_storeu_si512(place + i * PANEL + half, words[i]);
        }
    }
}

// The weights of a block of items and some columns, [column][DEPTH_ROOM]; columns that are not there are zero.
template <class I>
TARGET void take_weights(const Product &p, int64_t from, int64_t to, int strips, int64_t item, int depth, uint32_t *into) {
    for (int64_t column = from; column < from + strips * STRIP; column++, into += DEPTH_ROOM)
        for (int at = 0; at < depth; at += LANES) {
            const int64_t input = (item + at) * I::INPUTS;
            const __m512i words = column < to ? I::load(p.weight + column * p.inputs + input, p.inputs - input)
                                              : _mm512_setzero_si512();
            _mm512_storeu_si512(into + at, words);
        }
}

// `sums` [column][step] of the columns [from, to) into the result.
TARGET void put_columns(const Product &p, int64_t from, int64_t to, const float *sums, int64_t step) {
    for (int64_t column = from; column < to; column += LANES) {
        const __mmask16 mask = mask16(to - column);
        const __m512 bias = p.bias ? wide16(p.bias + column, mask) : _mm512_setzero_ps();
        for (int64_t row = 0; row < p.count; row += LANES) {
            __m512i words[LANES];
            for (int i = 0; i < LANES; i++)
                words[i] = column + i < to ? _mm512_loadu_si512(sums + (column - from + i) * step + row)
                                           : _mm512_setzero_si512();
            transpose16(words);
            const int held = int(std::min<int64_t>(LANES, p.count - row));
            for (int i = 0; i < held; i++) {
                __m512 value = _mm512_castsi512_ps(words[i]);
                if (p.bias) value = _mm512_add_ps(value, bias);
                store16(p.out + (row + i) * p.out_stride + column, value, mask);
            }
        }
    }
}

template <class I>
void compute_columns(const Product &p, const Panels &panels, Multiply two, Multiply one, int64_t from, int64_t to) {
    static thread_local Room<uint32_t> weight_room;
    static thread_local Room<float> sum_room;
    const int strips = int(cut(to - from, STRIP));
    const int64_t step = panels.panels * PANEL + LANES; // columns are not all in the same cache set
    uint32_t *weights = weight_room.of(WIDTH * DEPTH_ROOM);
    float *sums = sum_room.of(size_t(strips) * STRIP * step);
    std::memset(sums, 0, size_t(strips) * STRIP * step * sizeof(float));
    for (int64_t item = 0; item < panels.depth; item += DEPTH) {
        const int depth = int(std::min<int64_t>(DEPTH, panels.depth - item));
        take_weights<I>(p, from, to, strips, item, depth, weights);
        for (int64_t panel = 0; panel < panels.panels; panel++) {
            const uint32_t *rows = panels.at(item / DEPTH, panel), *next = rows + depth * PANEL;
            const Multiply multiply = p.count - panel * PANEL > LANES ? two : one;
            for (int strip = 0; strip < strips; strip++)
                multiply(rows, weights + strip * STRIP * DEPTH_ROOM, depth, sums + strip * STRIP * step + panel * PANEL,
                         step, next + strip % 2 * depth * LANES);
        }
    }
    put_columns(p, from, to, sums, step);
}

// One chunk of rows.
template <class I> void multiply_chunk(const Product &p, Multiply two, Multiply one, int threads) {
    static thread_local Room<uint32_t> room;
    const int64_t count = cut(p.count, PANEL), depth = cut(p.inputs, I::INPUTS);
    const Panels panels{room.of(size_t(count * PANEL * depth)), count, depth};
    for_each(count, threads, [&](int64_t panel) { pack_panel<I>(p, panels, panel); });
    int64_t width = WIDTH;
    while (width > STRIP && cut(p.columns, width) < TASKS * threads) width /= 2;
    for_each(cut(p.columns, width), threads, [&](int64_t task) {
        compute_columns<I>(p, panels, two, one, task * width, std::min((task + 1) * width, p.columns));
    });
}

// Calls `compute` with `chunk` of the product's rows after others.
template <typename Compute> void for_chunks(Product p, int64_t chunk, const Compute &compute) {
    const int64_t count = p.count;
    for (int64_t row = 0; row < count; row += chunk) {
        p.count = std::min(chunk, count - row);
        compute(p);
        p.rows += chunk * p.row_stride;
        p.out += chunk * p.out_stride;
        if (p.residual) p.residual += chunk * p.out_stride;
    }
}

template <class I> void multiply_rows(const Product &p, Multiply two, Multiply one, int threads) {
    for_chunks(p, CHUNK, [&](const Product &some) { multiply_chunk<I>(some, two, one, threads); });
}

constexpr int64_t TILED_COLUMNS = 2 * TILE; // of a task by tiles
constexpr int64_t NEAR_BYTES = 1 << 20;      // that stay in the second cache
constexpr int64_t NEAR_ROWS = 256;           // that the weights' way from memory is worth

// How many of such rows stay near.
int64_t near_rows(int64_t inputs) { return NEAR_BYTES / (2 * padded(inputs)) / PANEL * PANEL; }

// Inputs [from, to) of the product's rows, packed for tiles; they hold until others are.
const uint16_t *pack_inputs(const Product &p, int64_t from, int64_t to, int threads) {
    static thread_local Room<uint16_t> room;
    uint16_t *packed = room.of(size_t(packed_items(p.count, to - from)));
    for_each(cut(p.count, TILE), threads, [&](int64_t panel) TARGET {
        const int64_t first = panel * TILE;
        pack_panel(p.rows + first * p.row_stride + from, p.row_stride, std::min<int64_t>(TILE, p.count - first), 0, to - from,
                   packed + first * padded(to - from));
    });
    return packed;
}

// Inputs [from, to) of a product by tiles: all rows pass by a task's columns.
void multiply_inputs(const Product &p, int64_t from, int64_t to, float *sums, int threads) {
    const TileProduct product{pack_inputs(p, from, to, threads), p.weight + from, p.bias, p.residual, p.out, p.count, to - from,
                              p.out_stride, p.inputs, sums, !from, to == p.inputs};
    for_each(cut(p.columns, TILED_COLUMNS), threads, [&](int64_t task) {
        columns_by_tiles(product, task * TILED_COLUMNS, std::min((task + 1) * TILED_COLUMNS, p.columns));
    });
}

// A product by tiles. As many rows as stay near pass together; where that is few, for they are wide, more do, and as many of
// their inputs as stay near at a time.
void multiply_by_tiles(const Product &p, int threads) {
    static thread_local Room<float> room;
    const int64_t near = near_rows(p.inputs);
    for_chunks(p, near < NEAR_ROWS ? CHUNK : near, [&](const Product &some) {
        const int64_t passes = cut(some.count, std::max<int64_t>(near, PANEL)), depth = padded(cut(p.inputs, passes));
        float *sums = passes > 1 ? room.of(size_t(padded(some.count) * padded(p.columns))) : nullptr;
        for (int64_t from = 0; from < p.inputs; from += depth)
            multiply_inputs(some, from, std::min(from + depth, p.inputs), sums, threads);
    });
}

// ---------------------------------------------------------------------------------------------- token by token

// out = x / sqrt(mean(x^2) + epsilon) * weight, in fp32.
TARGET void norm_row(const uint16_t *x, const uint16_t *weight, uint16_t *out, int64_t width, float epsilon) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t at = 0; at < width; at += LANES) {
        const __m512 value = wide16(x + at, mask16(width - at));
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(width) + epsilon));
    for (int64_t at = 0; at < width; at += LANES) {
        const __mmask16 mask = mask16(width - at);
        store16(out + at, _mm512_mul_ps(_mm512_mul_ps(wide16(x + at, mask), scale), wide16(weight + at, mask)), mask);
    }
}

// out = silu(gate) * up of a row [gate, up], each `width` wide; the gate is rounded before, as torch's result is.
TARGET void gate_row(const uint16_t *row, uint16_t *out, int64_t width) {
    const __m512 one = _mm512_set1_ps(1.0f);
    for (int64_t at = 0; at < width; at += LANES) {
        const __mmask16 mask = mask16(width - at);
        const __m512 gate = wide16(row + at, mask), up = wide16(row + width + at, mask);
        const __m512 open =
            _mm512_div_ps(gate, _mm512_add_ps(one, exponential(_mm512_sub_ps(_mm512_setzero_ps(), gate))));
        store16(out + at, _mm512_mul_ps(rounded16(open), up), mask);
    }
}

// silu of 16 gates, rounded to bf16. Far below zero it is as at -87, or its inverse would be no normal number.
INLINE_TILES __m512 open16(__m512 gate) {
    const __m512 limited = _mm512_max_ps(_mm512_set1_ps(-87.0f), gate), log2e = _mm512_set1_ps(-1.44269504f);
    const __m512 power = power_of_two(_mm512_mul_ps(limited, log2e));
    const __m512 divisor = _mm512_add_ps(power, _mm512_set1_ps(1.0f)), guess = _mm512_rcp14_ps(divisor);
    const __m512 inverse = _mm512_mul_ps(guess, _mm512_fnmadd_ps(divisor, guess, _mm512_set1_ps(2.0f)));
    const __m256i open = (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(limited, inverse));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(open), 16));
}

// `gate_row` of up to 32 numbers in the accuracy of bf16: half the work, which the matrix unit waits for.
TARGET_TILES void gate_columns(const uint16_t *gates, const uint16_t *ups, uint16_t *out, int64_t width) {
    const __mmask16 low = mask16(width), high = mask16(width - LANES);
    const __m512 one = _mm512_mul_ps(open16(wide16(gates, low)), wide16(ups, low));
    const __m512 two = _mm512_mul_ps(open16(wide16(gates + LANES, high)), wide16(ups + LANES, high));
    _mm512_mask_storeu_epi16(out, mask_of(width), (__m512i)_mm512_cvtne2ps_pbh(two, one));
}

// `p` has the gates, `ups` what they let through: a task computes columns of both, and the gate while they are near.
void gate_by_tiles(const Product &p, const uint16_t *ups, int threads) {
    for_chunks(p, std::max(near_rows(p.inputs), NEAR_ROWS), [&](const Product &some) {
        const uint16_t *packed = pack_inputs(some, 0, p.inputs, threads);
        for_each(cut(p.columns, TILED_COLUMNS), threads, [&](int64_t task) {
            static thread_local Room<uint16_t> room;
            const int64_t from = task * TILED_COLUMNS, width = std::min(TILED_COLUMNS, p.columns - from);
            uint16_t *near = room.of(size_t(2 * some.count * TILED_COLUMNS)), *let = near + some.count * TILED_COLUMNS;
            const auto multiply = [&](const uint16_t *weight, uint16_t *into) {
                columns_by_tiles({packed, weight + from * p.inputs, nullptr, nullptr, into, some.count, p.inputs,
                                  TILED_COLUMNS, p.inputs}, 0, width);
            };
            multiply(p.weight, near);
            multiply(ups, let);
            for (int64_t i = 0; i < some.count; i++)
                gate_columns(near + i * TILED_COLUMNS, let + i * TILED_COLUMNS, some.out + i * p.out_stride + from, width);
        });
    });
}

// The pairs (x[d], x[d + half]) of one head turned by their angles; `turn` is [2, half] fp32: cosines, sines.
TARGET void turn_head(uint16_t *head, const float *turn, int64_t half) {
    for (int64_t at = 0; at < half; at += LANES) {
        const __mmask16 mask = mask16(half - at);
        const __m512 a = wide16(head + at, mask), b = wide16(head + half + at, mask);
        const __m512 cosine = _mm512_maskz_loadu_ps(mask, turn + at);
        const __m512 sine = _mm512_maskz_loadu_ps(mask, turn + half + at);
        store16(head + at, _mm512_sub_ps(_mm512_mul_ps(a, cosine), _mm512_mul_ps(b, sine)), mask);
        store16(head + half + at, _mm512_add_ps(_mm512_mul_ps(b, cosine), _mm512_mul_ps(a, sine)), mask);
    }
}

constexpr int64_t ROWS = 16; // of a task that goes row by row

template <typename OfRow> void for_rows(int64_t count, int threads, const OfRow &of_row) {
    for_each(cut(count, ROWS), threads, [&](int64_t task) {
        for (int64_t row = task * ROWS; row < std::min((task + 1) * ROWS, count); row++) of_row(row);
    });
}

const uint16_t *bf16(const void *from) { return static_cast<const uint16_t *>(from); }
uint16_t *bf16(void *from) { return static_cast<uint16_t *>(from); }

#endif

} // namespace

extern "C" {

#pragma GCC visibility push(default)

const char *dunlin_source_digest() { return SOURCE_DIGEST; }

// The best way to multiply that this processor has, see `Level`; NONE: it can compute nothing here.
int dunlin_level() { return level_of_processor(); }

#if X86

// out[count, columns] = rows[count, inputs] @ weight[columns, inputs]^T + bias. Strides are in numbers.
// `level`: the processor's, AVX512, or BF16, which is computed slowly where the processor cannot.
void dunlin_product(const void *rows, const void *weight, const void *bias, void *out, int64_t count,
                    int64_t columns, int64_t inputs, int64_t row_stride, int64_t out_stride, int level, int threads) {
    const Product p{bf16(rows), bf16(weight), bf16(bias), nullptr, bf16(out), count, columns, inputs, row_stride, out_stride};
    if (level == AMX) multiply_by_tiles(p, threads);
    else if (level == AVX512) multiply_rows<Single>(p, multiply_single<2>, multiply_single<1>, threads);
    else if (__builtin_cpu_supports("avx512bf16")) multiply_rows<Pair>(p, multiply_pair<2>, multiply_pair<1>, threads);
    else multiply_rows<Pair>(p, multiply_pair_slowly<2>, multiply_pair_slowly<1>, threads);
}

// out[count, columns] = residual + rows[count, inputs] @ weight[columns, inputs]^T, by tiles; the product is rounded before.
// `out_stride` is the residual's too, which may be the result.
void dunlin_product_onto(const void *rows, const void *weight, const void *residual, void *out, int64_t count,
                         int64_t columns, int64_t inputs, int64_t row_stride, int64_t out_stride, int threads) {
    multiply_by_tiles({bf16(rows), bf16(weight), nullptr, bf16(residual), bf16(out), count, columns, inputs, row_stride,
                       out_stride}, threads);
}

// out[count, width] = silu(rows[count, inputs] @ gates[width, inputs]^T) * (rows @ ups[width, inputs]^T), by tiles.
void dunlin_gated_product(const void *rows, const void *gates, const void *ups, void *out, int64_t count, int64_t width,
                          int64_t inputs, int64_t row_stride, int64_t out_stride, int threads) {
    gate_by_tiles({bf16(rows), bf16(gates), nullptr, nullptr, bf16(out), count, width, inputs, row_stride, out_stride},
                  bf16(ups), threads);
}

void dunlin_norm(const void *rows, const void *weight, void *out, int64_t count, int64_t width, int64_t row_stride,
                 float epsilon, int threads) {
    for_rows(count, threads, [&](int64_t row) {
        norm_row(bf16(rows) + row * row_stride, bf16(weight), bf16(out) + row * width, width, epsilon);
    });
}

void dunlin_gate(const void *rows, void *out, int64_t count, int64_t width, int threads) {
    for_rows(count, threads, [&](int64_t row) {
        gate_row(bf16(rows) + 2 * row * width, bf16(out) + row * width, width);
    });
}

// Turn the first `heads` heads of each row [heads, dim] in place, each in its first `turned` numbers.
void dunlin_turn(void *rows, const float *turn, int64_t count, int64_t heads, int64_t dim, int64_t turned,
                 int64_t row_stride, int threads) {
    for_rows(count, threads, [&](int64_t row) {
        for (int64_t head = 0; head < heads; head++)
            turn_head(bf16(rows) + row * row_stride + head * dim, turn + row * turned, turned / 2);
    });
}

// Copy each row of `width` bytes to its slot of as many.
void dunlin_put(const void *rows, void *slots, const int64_t *slot, int64_t count, int64_t width, int64_t row_bytes,
                int threads) {
    for_rows(count, threads, [&](int64_t row) {
        std::memcpy(static_cast<char *>(slots) + slot[row] * width, static_cast<const char *>(rows) + row * row_bytes,
                    size_t(width));
    });
}

#endif

#pragma GCC visibility pop
}
