// Row-wise work of batches of few tokens in bf16, on processors with AVX-512: products with weights, norms, and the gate
// of an MLP. Such batches are limited by reading the weights, and by the calls.
//
// A plain C interface: it depends on no version of torch or Python, so it is built without either. Threads are those of
// the OpenMP runtime that the process has loaded (torch's), found by name.
//
// A product is cut into tasks of a few columns of the result; each thread takes the next one, so a thread without a core
// holds up one task only. A result's bits depend on its own row and column alone: every sum is over the inputs in order.

#include "../../attention/native/room.h"
#include "bf16_rows.h"

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

namespace {

#if X86

constexpr int64_t ALONE_BYTES = 65536; // smaller products are not worth another thread

template <class I> struct Work {
    Product<I> product;
    int64_t width; // columns of a task
    std::atomic<int64_t> next;
};

template <class I> void take_columns(void *data) {
    Work<I> &work = *static_cast<Work<I> *>(data);
    for (;;) {
        const int64_t from = work.next.fetch_add(work.width, std::memory_order_relaxed);
        if (from >= work.product.columns) return;
        columns_of(work.product, from, std::min(from + work.width, work.product.columns));
    }
}

template <class I> TARGET void take_rows(const uint16_t *rows, int64_t row_stride, const GivenRows<I> &given) {
    for (int64_t row = 0; row < given.count; row++) take_row<I>(rows + row * row_stride, given.row(row), given.inputs);
    pack(given, 0, given.count, 0, given.inputs);
}

template <class I> void multiply(Product<I> product, const uint16_t *rows, int64_t row_stride, int threads) {
    static thread_local Room<typename I::Item> room;
    const GivenRows<I> given(room.of(size_t(GivenRows<I>::items(product.count, product.inputs))), product.count, product.inputs);
    take_rows(rows, row_stride, given);
    product.given = given.taken;
    Work<I> work{product, task_columns(product.inputs, I::UNIT, I::TASK_BYTES), {}};
    const int64_t tasks = (product.columns + work.width - 1) / work.width;
    const bool is_small = 2 * product.columns * product.inputs < ALONE_BYTES;
    const unsigned useful = is_small ? 1 : unsigned(std::min<int64_t>(threads, tasks));
    if (useful > 1 && GOMP_parallel) GOMP_parallel(take_columns<I>, &work, useful, 0);
    else take_columns<I>(&work);
}

// Writes numbers as they are, the last block in part.
struct Plain {
    using Item = uint16_t;
    INLINE void put(Item *to, __m512i bits) { _mm512_storeu_si512(to, bits); }
};

TARGET void norm_rows(const uint16_t *rows, const uint16_t *weight, uint16_t *out, int64_t count, int64_t width,
                      int64_t row_stride, float epsilon) {
    static thread_local Room<uint16_t> room;
    uint16_t *whole = room.of(size_t(padded(width)));
    for (int64_t row = 0; row < count; row++) {
        norm_row<Plain>(rows + row * row_stride, weight, whole, width, epsilon);
        std::memcpy(out + row * width, whole, 2 * width);
    }
}

TARGET void gate_rows(const uint16_t *rows, uint16_t *out, int64_t count, int64_t width) {
    for (int64_t row = 0; row < count; row++, rows += 2 * width, out += width)
        for (int64_t at = 0; at < width; at += BLOCK) {
            const __mmask32 mask = mask_of(width - at);
            const __m512i made = gate_block(load_some(rows + at, mask), load_some(rows + width + at, mask));
            _mm512_mask_storeu_epi16(out + at, mask, made);
        }
}

TARGET void turn_rows(uint16_t *rows, const float *turn, int64_t count, int64_t heads, int64_t dim, int64_t turned,
                      int64_t row_stride) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t head = 0; head < heads; head++)
            turn_head(rows + row * row_stride + head * dim, turn + row * turned, turned / 2);
}

#endif

} // namespace

extern "C" {

#pragma GCC visibility push(default)

const char *dunlin_source_digest() { return SOURCE_DIGEST; }

// 0: this processor cannot; 1: by AVX-512 BF16; 2: by AMX; 3: by AVX-512 alone.
int dunlin_level() { return level_of_processor(); }

#if X86

// out[count, columns] = rows[count, inputs] @ weight[columns, inputs]^T + bias. `columns` is a multiple of 4; strides are
// in numbers. `level`: at most the processor's.
void dunlin_product(const void *rows, const void *weight, const void *bias, void *out, int64_t count, int64_t columns,
                    int64_t inputs, int64_t row_stride, int level, int threads) {
    const auto *from = static_cast<const uint16_t *>(rows), *by = static_cast<const uint16_t *>(weight);
    const auto *added = static_cast<const uint16_t *>(bias);
    auto *to = static_cast<uint16_t *>(out);
    if (level == AVX512) multiply<Fused>({nullptr, by, added, nullptr, to, count, columns, inputs}, from, row_stride, threads);
    else if (level == AMX) multiply<Tiles>({nullptr, by, added, nullptr, to, count, columns, inputs}, from, row_stride, threads);
    else multiply<Dot>({nullptr, by, added, nullptr, to, count, columns, inputs}, from, row_stride, threads);
}

void dunlin_norm(const void *rows, const void *weight, void *out, int64_t count, int64_t width, int64_t row_stride,
                 float epsilon) {
    norm_rows(static_cast<const uint16_t *>(rows), static_cast<const uint16_t *>(weight), static_cast<uint16_t *>(out), count,
              width, row_stride, epsilon);
}

void dunlin_gate(const void *rows, void *out, int64_t count, int64_t width) {
    gate_rows(static_cast<const uint16_t *>(rows), static_cast<uint16_t *>(out), count, width);
}

// Turn the first `heads` heads of each row [heads, dim] in place, each in its first `turned` numbers.
void dunlin_turn(void *rows, const float *turn, int64_t count, int64_t heads, int64_t dim, int64_t turned,
                 int64_t row_stride) {
    turn_rows(static_cast<uint16_t *>(rows), turn, count, heads, dim, turned, row_stride);
}

#endif

#pragma GCC visibility pop
}
