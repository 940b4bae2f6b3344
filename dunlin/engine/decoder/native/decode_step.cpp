// A step of decode rows, one token each, in one call: embedding, layers (norm, products, rotation, KV, attention and MLP),
// logits and the greatest of them, in bf16. A call may be begun before the one is done that chooses its tokens.
//
// A plain C interface: it depends on no version of torch or Python, so it is built without either.
//
// A layer is eight phases, each cut into tasks that threads take one by one. A phase ends when its tasks are done, not
// when all threads have come: one without a core holds up the task that it has taken, if any, and finds the phases behind
// it done when it comes back. Bits of a row depend neither on threads nor on other rows: how its keys are split depends
// on their number alone, and splits merge in order.

#include "greatest.h"
#include "near_keys.h"

#if X86
#include "step_team.h"
#endif

#include <vector>

#ifndef SOURCE_DIGEST
#define SOURCE_DIGEST ""
#endif

namespace {

constexpr int SPLIT = 256; // keys of a task of attention
constexpr int MOST_DIM = 128;

// Addresses of a layer's weights and KV, as Python passes them. Biases, and norms of queries and keys, may be null.
struct Layer {
    const uint16_t *input_norm, *qkv, *qkv_bias, *query_norm, *key_norm, *out, *out_bias, *mlp_norm, *gate_up, *gate_up_bias,
        *down, *down_bias;
    uint16_t *kv;     // [slot, 2, kv_heads, dim]
    int64_t window;   // a token sees so many of the last positions, its own included; 0: all
    int64_t rotation; // which of the `turns` ways
};

// What Python passes; addresses hold until the call is done. Row i has `lengths[i]` keys in `run_counts[i]` runs of slots,
// one row's runs after another's: a run's first key and first slot. `places[i]` is the slot of its own key, the last, which
// is written first. `turned` numbers of a head are turned, in one of `turns` ways.
struct Step {
    const Layer *layers;
    uint16_t *hidden; // [rows, hidden], in and out; out alone where there are `tokens`
    const float *frequencies, *factors; // [turns, turned / 2] radians per position, [turns] of cosines and sines
    const int64_t *places, *lengths, *run_counts, *run_at, *run_slot;
    const int64_t *tokens;               // [rows], what the call before chose; null: the step begins with `hidden`
    const uint16_t *embed, *norm, *head; // [vocabulary, hidden], the last norm; `head` null: it ends with `hidden`
    uint16_t *logits;                    // [rows, vocabulary]
    int64_t *greatest;                   // [rows]: the first token of the greatest logit; -1: that is not finite
    int64_t layer_count, rows, width, heads, kv_heads, dim, inner, turned, turns, vocabulary, level, threads;
    float epsilon, scale;
};

#if X86

constexpr int PHASES = 8;      // of a layer
constexpr int OUTER_PHASES = 4; // before all layers, and after

// One row's keys [from, to) and heads: of attention.
struct Part {
    int32_t row, split, splits, group; // `group`: of heads that are computed together
    int64_t from, to;
};

// A call's tasks, and what its phases leave to each other.
template <class I> struct Call {
    using Item = typename I::Item;
    const Step step;
    const std::vector<Layer> layers;
    std::vector<char> room;
    std::vector<Phase> phases;
    std::vector<Part> parts;
    std::vector<int64_t> first_run, first_split; // of each row, among all rows' runs, and splits
    std::vector<std::atomic<int32_t>> missing;   // [rows, head groups]: splits that are not computed
    int64_t head_groups = 1;                     // that the heads of a row are cut into
    GivenRows<I> normed, mixed, active;
    uint16_t *projected, *gate_up;
    float *turn; // [rows, turns, 2, turned / 2]: cosines and sines
    float *partial; // [splits, heads, 2 + dim]

    explicit Call(const Step &s)
        : step(s), layers(s.layers, s.layers + s.layer_count), phases(s.layer_count * PHASES + OUTER_PHASES) {}
    ~Call() { Rooms::own().give(std::move(room)); }
};

// ---------------------------------------------------------------------------------------------- attention

// Slots of a row's keys [from, to), one after another.
struct KeyWalk {
    const int64_t *run_at, *run_slot;
    int64_t runs, run, key, to;

    KeyWalk(const Step &s, int64_t first_run, int64_t count, int64_t from, int64_t stop)
        : run_at(s.run_at + first_run), run_slot(s.run_slot + first_run), runs(count),
          run(std::upper_bound(run_at, run_at + runs, from) - run_at - 1), key(from), to(stop) {}

    // Fills in the next keys, up to NEAR; the rest of a group of 16 repeats the last: masked, and always finite.
    int next(const uint16_t *kv, int64_t stride, const uint16_t **keys) {
        int count = 0;
        while (count < NEAR && key < to) {
            if (run + 1 < runs && run_at[run + 1] == key) run++;
            keys[count++] = kv + (run_slot[run] + key - run_at[run]) * stride;
            key++;
        }
        for (int i = count; i % 16; i++) keys[i] = keys[count - 1];
        return count;
    }
};

template <class I>
INLINE void rotate(const Call<I> &call, const Layer &layer, const uint16_t *norm, int64_t row, uint16_t *head) {
    const Step &s = call.step;
    if (norm) {
        uint16_t normed[MOST_DIM];
        norm_row<Dot>(head, norm, normed, s.dim, s.epsilon);
        std::memcpy(head, normed, 2 * s.dim);
    }
    turn_head(head, call.turn + (row * s.turns + layer.rotation) * s.turned, s.turned / 2);
}

// One part's heads of keys and values go into the row's slot.
template <class I> INLINE void write_kv(const Call<I> &call, const Layer &layer, int64_t row, int64_t head) {
    const Step &s = call.step;
    const uint16_t *key = call.projected + (row * (s.heads + 2 * s.kv_heads) + s.heads + head) * s.dim;
    uint16_t *slot = layer.kv + s.places[row] * 2 * s.kv_heads * s.dim;
    uint16_t *to = slot + head * s.dim;
    std::memcpy(to, key, 2 * s.dim);
    rotate(call, layer, layer.key_norm, row, to);
    std::memcpy(slot + (s.kv_heads + head) * s.dim, key + s.kv_heads * s.dim, 2 * s.dim);
}

template <class I, int NV> INLINE void merge(Call<I> &call, const Part &part, int64_t first, int64_t last) {
    const Step &s = call.step;
    constexpr int STRIDE = 2 + NV * BLOCK;
    const float *partial = call.partial + call.first_split[part.row] * s.heads * STRIDE;
    for (int64_t head = first; head < last; head++) {
        float high = NOTHING, sum = 0;
        Planes out[NV];
        for (int v = 0; v < NV; v++) out[v] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int i = 0; i < part.splits; i++) high = std::max(high, partial[(i * s.heads + head) * STRIDE]);
        for (int i = 0; i < part.splits; i++) {
            const float *one = partial + (i * s.heads + head) * STRIDE;
            const float worth = one[0] == high ? 1.0f : std::exp(one[0] - high);
            sum += one[1] * worth;
            for (int v = 0; v < NV; v++) {
                out[v].even = _mm512_fmadd_ps(_mm512_loadu_ps(one + 2 + v * BLOCK), _mm512_set1_ps(worth), out[v].even);
                out[v].odd = _mm512_fmadd_ps(_mm512_loadu_ps(one + 18 + v * BLOCK), _mm512_set1_ps(worth), out[v].odd);
            }
        }
        const __m512 scale = _mm512_set1_ps(1.0f / sum);
        typename I::Item *to = call.mixed.row(part.row) + head * NV * BLOCK;
        for (int v = 0; v < NV; v++)
            I::put(to + v * BLOCK, narrow({_mm512_mul_ps(out[v].even, scale), _mm512_mul_ps(out[v].odd, scale)}));
    }
}

// Queries of the part's heads, turned; in the last split also keys and values.
template <class I, int NV>
INLINE void begin_part(Call<I> &call, const Layer &layer, const Part &part, int64_t first, int64_t last, typename I::Item *query) {
    const Step &s = call.step;
    const int64_t group = s.heads / s.kv_heads;
    for (int64_t head = first * group; head < last * group; head++) {
        uint16_t turned[MOST_DIM];
        const uint16_t *from = call.projected + (part.row * (s.heads + 2 * s.kv_heads) + head) * s.dim;
        std::memcpy(turned, from, 2 * s.dim);
        rotate(call, layer, layer.query_norm, part.row, turned);
        take_row<I>(turned, query + (head - first * group) * s.dim, s.dim);
    }
    if (part.split + 1 == part.splits)
        for (int64_t head = first; head < last; head++) write_kv(call, layer, part.row, head);
}

template <class I, int NV> TARGET void attend(Call<I> &call, const Layer &layer, const Part &part) {
    const Step &s = call.step;
    constexpr int STRIDE = 2 + NV * BLOCK;
    const int64_t group = s.heads / s.kv_heads, slot = 2 * s.kv_heads * s.dim;
    const int64_t first = part.group * s.kv_heads / call.head_groups, last = (part.group + 1) * s.kv_heads / call.head_groups;
    static thread_local std::vector<typename I::Item> query;
    if (query.size() < size_t(s.heads * s.dim)) query.resize(s.heads * s.dim);
    begin_part<I, NV>(call, layer, part, first, last, query.data());
    float *partial = call.partial + (call.first_split[part.row] + part.split) * s.heads * STRIDE;
    for (int64_t head = first * group; head < last * group; head++) {
        std::fill_n(partial + head * STRIDE, STRIDE, 0.0f);
        partial[head * STRIDE] = NOTHING;
    }
    const int64_t seen = layer.window ? std::max(part.from, s.lengths[part.row] - layer.window) : part.from;
    KeyWalk walk(s, call.first_run[part.row], s.run_counts[part.row], std::min(seen, part.to - 1), part.to);
    const uint16_t *keys[2][NEAR];
    int counts[2] = {seen < part.to ? walk.next(layer.kv, slot, keys[0]) : 0, 0};
    for (int turn = 0; counts[turn]; turn ^= 1) {
        counts[turn ^ 1] = walk.next(layer.kv, slot, keys[turn ^ 1]);
        Ahead ahead{keys[turn ^ 1], counts[turn ^ 1], int(last - first), first * s.dim, s.dim, s.kv_heads * s.dim};
        for (int64_t head = first; head < last; head++) {
            const Near near{keys[turn], counts[turn], head * s.dim, s.kv_heads * s.dim};
            group_over<I, NV>(query.data() + (head - first) * group * s.dim, int(group), near, ahead, s.scale,
                              partial + head * group * STRIDE);
        }
    }
    std::atomic<int32_t> &missing = call.missing[part.row * call.head_groups + part.group];
    if (missing.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    missing.store(part.splits, std::memory_order_relaxed); // for the next layer
    merge<I, NV>(call, part, first * group, last * group);
}

// ---------------------------------------------------------------------------------------------- phases

// What a token at `position` turns by.
void find_turn(const Step &s, float position, float *turn) {
    const int64_t half = s.turned / 2;
    for (int64_t way = 0; way < s.turns; way++, turn += s.turned)
        for (int64_t i = 0; i < half; i++) {
            const float angle = position * s.frequencies[way * half + i];
            turn[i] = s.factors[way] * std::cos(angle);
            turn[half + i] = s.factors[way] * std::sin(angle);
        }
}

// The rows' angles, and the hidden states of their tokens; where the call before found none, of some token: what becomes
// of it is not read.
template <class I> INLINE bool enter(Call<I> &call, Phase &phase, const Until &until) {
    const Step &s = call.step;
    return work(phase, s.rows, until, [&](int64_t row) TARGET {
        find_turn(s, float(s.lengths[row] - 1), call.turn + row * s.turns * s.turned);
        if (!s.tokens) return;
        const int64_t token = std::max<int64_t>(s.tokens[row], 0);
        std::memcpy(s.hidden + row * s.width, s.embed + token * s.width, 2 * s.width);
    });
}

// The rows' norms, those of a panel by one thread.
template <class I> INLINE bool normalise(Call<I> &call, Phase &phase, const Until &until, const uint16_t *weight) {
    const Step &s = call.step;
    constexpr int64_t TOGETHER = I::IS_PACKED ? TILE : 1;
    return work(phase, (s.rows + TOGETHER - 1) / TOGETHER, until, [&](int64_t task) TARGET {
        const int64_t first = task * TOGETHER, last = std::min(first + TOGETHER, s.rows);
        for (int64_t row = first; row < last; row++)
            norm_row<I>(s.hidden + row * s.width, weight, call.normed.row(row), s.width, s.epsilon);
        pack(call.normed, first, last, 0, s.width);
    });
}

// What attention made, as the product takes it.
template <class I> INLINE bool pack_mixed(Call<I> &call, Phase &phase, const Until &until) {
    return work(phase, call.mixed.panels(), until, [&](int64_t panel) TARGET {
        const int64_t first = panel * TILE;
        pack(call.mixed, first, std::min(first + TILE, call.step.rows), 0, call.mixed.inputs);
    });
}

template <class I> INLINE bool multiply(const Product<I> &product, Phase &phase, const Until &until) {
    const int64_t width = task_columns(product.inputs, I::UNIT, I::TASK_BYTES);
    return work(phase, (product.columns + width - 1) / width, until, [&](int64_t task) TARGET {
        columns_of(product, task * width, std::min((task + 1) * width, product.columns));
    });
}

// Gate and up, and what the one lets through of the other.
template <class I> INLINE bool feed(Call<I> &call, const Layer &layer, Phase &phase, const Until &until) {
    const Step &s = call.step;
    const Product<I> product{call.normed.taken, layer.gate_up, layer.gate_up_bias, nullptr, call.gate_up, s.rows,
                             2 * s.inner, s.width};
    const int64_t width = task_columns(2 * s.width, BLOCK, I::TASK_BYTES);
    return work(phase, (s.inner + width - 1) / width, until, [&](int64_t task) TARGET {
        const int64_t from = task * width, to = std::min(from + width, s.inner);
        columns_of(product, from, to);
        columns_of(product, s.inner + from, s.inner + to);
        for (int64_t row = 0; row < s.rows; row++) {
            const uint16_t *gate = call.gate_up + row * 2 * s.inner;
            typename I::Item *out = call.active.row(row);
            for (int64_t at = from; at < to; at += BLOCK) {
                const __mmask32 mask = mask_of(to - at);
                I::put(out + at, gate_block(load_some(gate + at, mask), load_some(gate + s.inner + at, mask)));
            }
        }
        pack(call.active, 0, s.rows, from, to);
    });
}

template <class I, int NV>
TARGET bool layer_of(Call<I> &call, const Layer &layer, Phase *phases, const Until &until) {
    const Step &s = call.step;
    const int64_t all = (s.heads + 2 * s.kv_heads) * s.dim;
    const Product<I> qkv{call.normed.taken, layer.qkv, layer.qkv_bias, nullptr, call.projected, s.rows, all, s.width};
    const Product<I> out{call.mixed.taken, layer.out, layer.out_bias, s.hidden, s.hidden, s.rows, s.width, s.heads * s.dim};
    const Product<I> down{call.active.taken, layer.down, layer.down_bias, s.hidden, s.hidden, s.rows, s.width, s.inner};
    const auto attention = [&](int64_t part) TARGET { attend<I, NV>(call, layer, call.parts[part]); };
    return normalise(call, phases[0], until, layer.input_norm) && multiply<I>(qkv, phases[1], until) &&
           work(phases[2], int64_t(call.parts.size()), until, attention) && pack_mixed(call, phases[3], until) &&
           multiply<I>(out, phases[4], until) && normalise(call, phases[5], until, layer.mlp_norm) &&
           feed(call, layer, phases[6], until) && multiply<I>(down, phases[7], until);
}

template <class I> TARGET bool choose(Call<I> &call, Phase *phases, const Until &until) {
    const Step &s = call.step;
    const Product<I> logits{call.normed.taken, s.head, nullptr, nullptr, s.logits, s.rows, s.vocabulary, s.width};
    return normalise(call, phases[0], until, s.norm) && multiply<I>(logits, phases[1], until) &&
           work(phases[2], s.rows, until, [&](int64_t row) TARGET {
               s.greatest[row] = first_greatest(s.logits + row * s.vocabulary, s.vocabulary);
           });
}

template <class I, int NV> TARGET bool compute(Call<I> &call, const Until &until) {
    Phase *phases = call.phases.data();
    if (!enter(call, *phases, until)) return false;
    phases++;
    for (const Layer &layer : call.layers) {
        if (!layer_of<I, NV>(call, layer, phases, until)) return false;
        phases += PHASES;
    }
    return !call.step.head || choose(call, phases, until);
}

// ---------------------------------------------------------------------------------------------- a call

// A row's keys are cut by their number; its heads so that there are tasks for all threads.
template <class I> void cut(Call<I> &call) {
    const Step &s = call.step;
    int64_t runs = 0, splits = 0;
    for (int64_t row = 0; row < s.rows; row++) {
        call.first_run.push_back(runs);
        call.first_split.push_back(splits);
        runs += s.run_counts[row];
        splits += (s.lengths[row] + SPLIT - 1) / SPLIT;
    }
    call.head_groups = std::max<int64_t>(std::min<int64_t>((4 * s.threads + splits - 1) / splits, s.kv_heads), 1);
    call.missing = std::vector<std::atomic<int32_t>>(s.rows * call.head_groups);
    for (int64_t row = 0; row < s.rows; row++) {
        const int32_t count = int32_t((s.lengths[row] + SPLIT - 1) / SPLIT);
        for (int32_t split = 0; split < count; split++)
            for (int32_t group = 0; group < call.head_groups; group++)
                call.parts.push_back({int32_t(row), split, count, group, int64_t(split) * SPLIT,
                                      std::min<int64_t>(int64_t(split + 1) * SPLIT, s.lengths[row])});
        for (int32_t group = 0; group < call.head_groups; group++) call.missing[row * call.head_groups + group] = count;
    }
    call.first_split.push_back(splits);
}

// The next so many items of a buffer that several share, each at the beginning of a cache line.
template <class T> T *take(char *&at, int64_t items) {
    T *taken = reinterpret_cast<T *>(at);
    at += (items * int64_t(sizeof(T)) + 63) / 64 * 64;
    return taken;
}

template <class I> char *lay_out(Call<I> &call, char *at) {
    using Item = typename I::Item;
    const Step &s = call.step;
    const auto given = [&](int64_t inputs) {
        return GivenRows<I>(take<Item>(at, GivenRows<I>::items(s.rows, inputs)), s.rows, inputs);
    };
    call.normed = given(s.width);
    call.mixed = given(s.heads * s.dim);
    call.active = given(s.inner);
    call.projected = take<uint16_t>(at, s.rows * (s.heads + 2 * s.kv_heads) * s.dim);
    call.gate_up = take<uint16_t>(at, s.rows * 2 * s.inner);
    call.turn = take<float>(at, s.rows * s.turns * s.turned);
    call.partial = take<float>(at, call.first_split.back() * s.heads * (2 + s.dim));
    return at;
}

template <class I> int64_t begin(const Step &step) {
    const auto call = std::make_shared<Call<I>>(step);
    cut(*call);
    const size_t bytes = size_t(lay_out(*call, nullptr) - static_cast<char *>(nullptr)) + 64;
    call->room = Rooms::own().take(bytes);
    lay_out(*call, call->room.data() + (64 - reinterpret_cast<uintptr_t>(call->room.data()) % 64));
    bool (*const computes[])(Call<I> &, const Until &) = {compute<I, 1>, compute<I, 2>, compute<I, 3>, compute<I, 4>};
    const auto chosen = computes[step.dim / BLOCK - 1];
    const auto shared = std::make_shared<TeamCall>();
    shared->compute = [call, chosen](const Until &until) { return chosen(*call, until); };
    shared->threads = step.threads;
    return Team::own().begin(shared);
}

#endif

} // namespace

extern "C" {

#pragma GCC visibility push(default)

const char *dunlin_source_digest() { return SOURCE_DIGEST; }

// As the products' library tells it.
int dunlin_level() { return level_of_processor(); }

#if X86

// Begins to compute a step after those that were begun before; returns its ticket, or 0 for a shape that it cannot
// compute: then nothing is done. `level` may be one that has fewer instructions than the processor: 1 instead of 2, and 3 instead of any.
int64_t dunlin_decode_begin(const Step *step) {
    const Step &s = *step;
    if (s.dim < BLOCK || s.dim > MOST_DIM || s.dim % BLOCK || s.kv_heads < 1 || s.heads % s.kv_heads) return 0;
    if (s.width % COLUMNS || s.inner % COLUMNS || s.rows < 1 || (s.head && s.vocabulary % COLUMNS)) return 0;
    return s.level == AVX512 ? begin<Fused>(s) : s.level == AMX ? begin<Tiles>(s) : begin<Dot>(s);
}

// Computes with the team until the step of that ticket (0: the last that was begun) is done, for `most_s` seconds at
// most if that is not negative; returns whether it is done.
int dunlin_decode_join(int64_t ticket, double most_s) { return Team::own().join(ticket, most_s); }

#endif

#pragma GCC visibility pop
}
