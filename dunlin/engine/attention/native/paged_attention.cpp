// Attention of short rows over keys and values that lie anywhere in the KV cache, on the CPU.
//
// A plain C interface: it depends on no version of torch or Python, so it is built without either. Threads are those of
// the OpenMP runtime that the process has loaded (torch's), found by name.
//
// Work is cut into tasks: a block of a row's queries, with all heads or, where such tasks are few, with some, against a
// block of its keys. A task reads a slot's KV once, key after key, whether slots follow each other or not. There are more
// tasks than threads, each thread takes the next one, so a thread without a core holds up one task only. How a row's keys
// are cut depends on the row alone, and the last task of a block of queries merges it in the order of keys: bits depend
// neither on threads nor on other rows. With `fixed` a row's keys are not cut: a query's bits depend on the keys that it
// sees alone, and on which of them the row begins with.

#include "avx2_blocks.h"
#include "head_block.h"
#include "room.h"

#include <atomic>
#include <vector>

#if X86
#include "tile_blocks.h"
#endif

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

extern "C" void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

namespace {

constexpr int QUERY_BLOCK = 16;      // tokens of a task, at least
constexpr int64_t DECODE_KEYS = 256; // keys of a task of few tokens: small, for there are few tasks
constexpr int64_t PREFILL_KEYS = 4096;
constexpr int FEW_TOKENS = 4;
constexpr int64_t TASKS = 4; // for each thread, where tasks have some heads

enum Dtype { F32 = 0, BF16 = 1 };
enum Level { PORTABLE = 0, AVX2 = 1, AVX512 = 2, AVX512_BF16 = 3, AMX = 4 };

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
    bool fixed;
    int group() const { return heads / kv_heads; }
};

struct Task {
    int32_t row, first, count, block; // queries [first, first + count) of the row; the block of queries that it is of
    int32_t head, heads;              // KV heads [head, head + heads)
    int64_t from, to;                 // keys
    size_t scratch;                   // where its result lies, in floats
};

struct QueryBlock {
    int32_t first_task, tasks;
    std::atomic<int32_t> missing;
};

void put_as_it_is(const float *mixed, float scale, int dim, bool is_bf16, char *out) {
    if (is_bf16)
        for (int d = 0; d < dim; d++) reinterpret_cast<uint16_t *>(out)[d] = to_bf16(mixed[d] * scale);
    else
        for (int d = 0; d < dim; d++) reinterpret_cast<float *>(out)[d] = mixed[d] * scale;
}

// ---------------------------------------------------------------------------------------------- one task

struct Kernel {
    void (*block)(const HeadBlock &);
    void (*put)(const float *mixed, float scale, int dim, bool is_bf16, char *out); // a row of its results
    bool widens = false; // queries in bf16 are given in fp32
    int rows = 0;        // of a KV head that a task has where a row has so many: for what is done once for all of them
};

Kernel choose(const Call &call) {
#if X86
    using Block = void (*)(const HeadBlock &);
    static constexpr Block by_tiles[] = {amx_bf16<1>, amx_bf16<2>, amx_bf16<3>, amx_bf16<4>};
    static constexpr Block by_pairs[] = {avx512_bf16<1>, avx512_bf16<2>, avx512_bf16<3>, avx512_bf16<4>};
    static constexpr Block widened[] = {avx512_f32<2, uint16_t>, avx512_f32<4, uint16_t>, avx512_f32<6, uint16_t>,
                                        avx512_f32<8, uint16_t>};
    static constexpr Block plain[] = {avx512_f32<2, float>, avx512_f32<4, float>, avx512_f32<6, float>, avx512_f32<8, float>};
    static constexpr Block fixed[] = {avx512_f32<2, float, true>, avx512_f32<4, float, true>, avx512_f32<6, float, true>,
                                      avx512_f32<8, float, true>};
    const bool is_bf16 = call.dtype == BF16, has_blocks = call.dim % 32 == 0 && call.dim <= 128;
    const int at = call.dim / 32 - 1;
    if (has_blocks && is_bf16 && call.level >= AVX512_BF16 && __builtin_cpu_supports("avx512bf16") && call.group() <= 16) {
        if (call.level >= AMX && may_use_tiles()) return {by_tiles[at], put_in_order, false, TILED_ROWS};
        return {by_pairs[at], put_in_order};
    }
    if (has_blocks && call.level >= AVX512 && __builtin_cpu_supports("avx512dq"))
        return {is_bf16 ? widened[at] : call.fixed ? fixed[at] : plain[at], put_as_it_is, is_bf16};
    if (call.level >= AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (call.dim % WIDE) return {is_bf16 ? avx2_any_bf16 : avx2_any_f32, put_as_it_is};
        return {is_bf16 ? avx2_f32<uint16_t> : call.fixed ? avx2_f32<float, true> : avx2_f32<float>, put_as_it_is, is_bf16};
    }
#endif
    return {call.dtype == BF16 ? portable_bf16 : portable_f32, put_as_it_is};
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

// A task's part of the scratch: high [its heads x tokens], sum, mixed.
struct Part {
    float *high, *sum, *mixed;
    Part(float *at, size_t rows) : high(at), sum(at + rows), mixed(at + whole(2 * rows)) {}
    static size_t floats(size_t rows, int dim) { return whole(2 * rows) + whole(rows * dim); }
    static size_t whole(size_t floats) { return (floats + 15) / 16 * 16; } // cache lines
};

void widen(const uint16_t *from, float *to, int count) {
    for (int i = 0; i < count; i++) to[i] = from_bf16(from[i]);
}

void compute_task(const Call &call, const Kernel &kernel, const Task &task, float *scratch) {
    const Row &row = call.rows[task.row];
    const int group = call.group(), rows = task.count * group, dim = call.dim;
    const size_t item = call.dtype == BF16 ? 2 : 4, all = size_t(rows) * task.heads;
    Part part(scratch + task.scratch, all);
    std::fill(part.high, part.high + all, NOTHING);
    std::fill(part.sum, part.sum + all, 0.0f);
    std::fill(part.mixed, part.mixed + all * dim, 0.0f);

    static thread_local Room<char> query_room;
    static thread_local Room<float> score_room;
    const size_t query_item = kernel.widens ? sizeof(float) : item;
    char *packed = query_room.of(all * dim * query_item);
    float *scores = score_room.of(size_t(rows) * BLOCK);
    const size_t span = size_t(group) * dim * item; // of a token, in a KV head
    for (int head = 0; head < task.heads; head++)
        for (int t = 0; t < task.count; t++) {
            const char *from = call.query + (row.query + task.first + t) * call.query_stride * item + (task.head + head) * span;
            char *to = packed + (size_t(head) * task.count + t) * group * dim * query_item;
            if (kernel.widens) widen(reinterpret_cast<const uint16_t *>(from), reinterpret_cast<float *>(to), group * dim);
            else std::memcpy(to, from, span);
        }

    const char *keys[2][BLOCK];
    static thread_local std::vector<int> hidden;
    if (call.window) hidden.resize(rows);
    int visible[MOST_ROWS], counts[2];
    std::vector<int> many;
    int *seen = visible;
    if (rows > MOST_ROWS) many.resize(rows), seen = many.data();
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
        for (int head = 0; head < task.heads; head++) {
            const size_t offset = size_t(task.head + head) * dim * item;
            const HeadBlock b{keys[turn], counts[turn ^ 1] ? keys[turn ^ 1] : nullptr, counts[turn], counts[turn ^ 1],
                              offset, offset + size_t(call.kv_heads) * dim * item, dim * item,
                              packed + size_t(head) * task.count * group * dim * query_item, seen,
                              call.window ? hidden.data() : nullptr, rows, dim, call.scale, call.cap, scores, part.high + size_t(head) * rows,
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
    const size_t all = size_t(first.count) * first.heads * group, item = call.out_dtype == BF16 ? 2 : 4;
    std::vector<float> out(dim);
    for (size_t r = 0; r < all; r++) {
        float high = NOTHING, sum = 0;
        for (int i = 0; i < count; i++)
            high = std::max(high, Part(const_cast<float *>(scratch) + tasks[i].scratch, all).high[r]);
        const float *whole = Part(const_cast<float *>(scratch) + first.scratch, all).mixed + r * dim;
        if (count > 1) std::fill(out.begin(), out.end(), 0.0f), whole = out.data();
        for (int i = 0; i < count; i++) {
            const Part part(const_cast<float *>(scratch) + tasks[i].scratch, all);
            if (part.high[r] == NOTHING) continue;
            const float share = part.high[r] == high ? 1.0f : std::exp(part.high[r] - high);
            sum += part.sum[r] * share;
            if (count == 1) break;
            const float *mixed = part.mixed + r * dim;
            for (int d = 0; d < dim; d++) out[d] += mixed[d] * share;
        }
        const size_t head = r / (size_t(first.count) * group), t = r / group % first.count, g = r % group;
        const size_t at = (row.out + first.first + t) * call.heads + (first.head + head) * group + g;
        const float scale = sum == 0 ? 0.0f : 1.0f / sum;
        call.lse[at] = sum == 0 ? NOTHING : high + std::log(sum);
        kernel.put(whole, scale, dim, call.out_dtype == BF16, call.out + at * dim * item);
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
        const size_t taken = work.next.fetch_add(1, std::memory_order_relaxed);
        if (taken >= work.tasks->size()) return;
        const Task &task = (*work.tasks)[work.tasks->size() - 1 - taken]; // a prompt's last queries have the most keys
        compute_task(*work.call, work.kernel, task, work.scratch);
        QueryBlock &block = (*work.blocks)[task.block];
        if (block.missing.fetch_sub(1, std::memory_order_acq_rel) == 1)
            merge_tasks(*work.call, work.kernel, work.tasks->data() + block.first_task, block.tasks, work.scratch);
    }
}

// The tasks of a call, by blocks of queries with some heads: (first task, tasks). Each has one at least, so that every query
// has a result.
struct TaskCutter {
    const Call &call;
    std::vector<Task> &tasks;
    std::vector<std::pair<int32_t, int32_t>> &blocks;
    size_t floats = 0;

    // The queries and heads of `task` against keys from its own first one to `end`, `width` at a time.
    void cut_keys(Task task, int64_t width, int64_t end) {
        const int32_t before = int32_t(tasks.size());
        task.block = int32_t(blocks.size());
        do {
            task.to = std::min(task.from + width, end);
            task.scratch = floats;
            tasks.push_back(task);
            floats += Part::floats(size_t(task.count) * task.heads * call.group(), call.dim);
            task.from = task.to;
        } while (task.from < end);
        blocks.push_back({before, int32_t(tasks.size()) - before});
    }

    // A row by `query_block` queries and so many parts of its heads.
    void cut_row(int32_t index, int64_t query_block, int32_t parts) {
        const Row &row = call.rows[index];
        const int64_t width = call.fixed ? row.key_to + 1 : row.tokens <= FEW_TOKENS ? DECODE_KEYS : PREFILL_KEYS;
        for (int64_t first = 0; first < row.tokens; first += query_block) {
            const int32_t count = int32_t(std::min(query_block, row.tokens - first));
            const int64_t end = std::max(count_seen(row, first + count - 1), row.key_from);
            const int64_t hidden = call.fixed ? 0 : count_hidden(row, first, call.window);
            const int64_t from = std::min(std::max(row.key_from, hidden), end);
            for (int32_t part = 0; part < parts; part++) {
                const int32_t head = part * call.kv_heads / parts, stop = (part + 1) * call.kv_heads / parts;
                cut_keys({index, int32_t(first), count, 0, head, stop - head, from, from, 0}, width, end);
            }
        }
    }
};

// Blocks of many queries may be too few for all threads: then they are cut by heads too.
size_t cut_tasks(const Call &call, const Kernel &kernel, int threads, std::vector<Task> &tasks,
                 std::vector<std::pair<int32_t, int32_t>> &blocks) {
    const int64_t query_block = std::max(kernel.rows / call.group(), QUERY_BLOCK);
    int64_t count = 0;
    for (int64_t r = 0; r < call.row_count; r++) count += (call.rows[r].tokens + query_block - 1) / query_block;
    const int64_t wanted = count ? (TASKS * threads + count - 1) / count : 1;
    const int32_t parts = kernel.rows ? int32_t(std::min<int64_t>(call.kv_heads, wanted)) : 1;
    TaskCutter cutter{call, tasks, blocks};
    for (int64_t r = 0; r < call.row_count; r++)
        cutter.cut_row(int32_t(r), query_block, call.rows[r].tokens > FEW_TOKENS ? parts : 1);
    return cutter.floats;
}

} // namespace

extern "C" {

#pragma GCC visibility push(default)

const char *dunlin_source_digest() { return SOURCE_DIGEST; }

// The highest level of instructions that this processor has.
int dunlin_level() {
#if X86
    if (__builtin_cpu_supports("avx512bf16")) return may_use_tiles() ? AMX : AVX512_BF16;
    if (__builtin_cpu_supports("avx512dq")) return AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
    return PORTABLE;
}

// Strides are in numbers. `rows` is [row_count, 11] as in `Row`. `window`, `cap`: 0 for none; `scale`: 0 for the root of
// `dim`. `fixed`: for fp32. Returns 0; 1 for a shape that it cannot compute.
int dunlin_paged_attention(const void *query, const void *kv, void *out, float *lse, const int64_t *rows,
                           const int64_t *run_at, const int64_t *run_slot, int64_t row_count, int64_t query_stride,
                           int64_t slot_stride, int heads, int kv_heads, int dim, int dtype, int out_dtype, int level,
                           int threads, int64_t window, float scale, float cap, int fixed) {
    if (kv_heads < 1 || heads % kv_heads || dim < 1 || dim > MOST_DIM || (fixed && dtype != F32)) return 1;
    const size_t item = dtype == BF16 ? 2 : 4;
    const Call call{static_cast<const char *>(query), static_cast<const char *>(kv), static_cast<char *>(out), lse,
                    reinterpret_cast<const Row *>(rows), run_at, run_slot, row_count, query_stride,
                    int64_t(slot_stride * item), heads, kv_heads, dim, dtype, out_dtype, level, window,
                    scale != 0 ? scale : 1.0f / std::sqrt(float(dim)), cap, fixed != 0};
    static thread_local std::vector<Task> tasks;
    static thread_local std::vector<std::pair<int32_t, int32_t>> cuts;
    static thread_local Room<float> room;
    tasks.clear();
    cuts.clear();
    const Kernel kernel = choose(call);
    const size_t floats = cut_tasks(call, kernel, threads, tasks, cuts);
    float *scratch = room.of(floats);
    std::vector<QueryBlock> blocks(cuts.size());
    for (size_t i = 0; i < cuts.size(); i++) {
        blocks[i].first_task = cuts[i].first;
        blocks[i].tasks = cuts[i].second;
        blocks[i].missing.store(cuts[i].second, std::memory_order_relaxed);
    }
    Work work{&call, kernel, &tasks, &blocks, scratch, {}};
    const unsigned useful = unsigned(std::min<size_t>(threads, tasks.size()));
    if (useful > 1 && GOMP_parallel) GOMP_parallel(take_tasks, &work, useful, 0);
    else take_tasks(&work);
    return 0;
}

#pragma GCC visibility pop
}
