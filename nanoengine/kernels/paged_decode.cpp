// Decode attention over a paged KV cache, on a CPU, as fast as memory lets it.
//
// A cache is [block][offset][kv head][head_dim], so one token's K (or V) of all heads is one contiguous row. Work is
// cut into units of `split` tokens of one sequence. A thread takes a unit, reads its K rows once for the scores, then
// its V rows once for the output, and leaves a partial result (m, l, acc), as split-KV does on a GPU. Who finishes the
// last unit of a sequence merges its parts, so nobody waits for another thread until all is done. Within a unit the
// tokens are the outer loop and the heads the inner one: the other way round walks memory with a stride. Blocks lie
// anywhere, so the hardware cannot guess the next row, and the kernel asks for it itself.
//
// A unit's boundaries depend on the sequence alone: neither batch mates nor the number of threads change a result.

#include "lanes.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace {

constexpr int GROUP = 16;           // tokens handled together; a multiple of W
constexpr int ROWS = 4;             // query heads of one KV head handled together, at most
constexpr int AHEAD_BYTES = 12288;  // how far ahead memory is asked for: a few hundred ns of reading, within L1

template <class T>
struct Problem {
    const T *q, *k, *v;
    T* out;
    const int32_t *tables, *lens;
    int64_t batch, heads, kv_heads, head_dim, block_size, table_width;
    float scale;
    int64_t split;
};

// What will be read soon: one head's piece of each row of a group. Asked for piece by piece while others are worked on.
template <class T>
struct Ahead {
    const T* cache;  // null: nothing to ask for
    const int64_t* rows;

    // Inlined by force: GCC takes a function that only prefetches for one without effect, and drops the calls.
    __attribute__((always_inline)) void ask(int t, int64_t head_dim) const {
        if (!cache) return;
        const char* p = (const char*)(cache + rows[t]);
        for (int64_t byte = 0; byte < head_dim * int64_t(sizeof(T)); byte += 64) __builtin_prefetch(p + byte, 0, 3);
    }
};

// s[g][t] = q[g] . k[t] for the GROUP tokens of `rows` and G query heads.
// D: head_dim when it is known at compile time, which makes the loops about a third faster; else 0.
template <int G, int D, class T>
inline void score(const float* q, const T* k, const int64_t* rows, int64_t head_dim, float* s, int64_t s_stride,
                  const Ahead<T>& ahead) {
    if (D) head_dim = D;
    for (int t0 = 0; t0 < GROUP; t0 += W) {
        vec part[G][W];
        for (int t = 0; t < W; t++) {
            ahead.ask(t0 + t, head_dim);
            const T* row = k + rows[t0 + t];
            vec sum[G] = {};
            for (int64_t d = 0; d < head_dim; d += W) {
                vec x = load(row + d);
                for (int g = 0; g < G; g++) sum[g] += load(q + g * head_dim + d) * x;
            }
            for (int g = 0; g < G; g++) part[g][t] = sum[g];
        }
        for (int g = 0; g < G; g++) store(s + g * s_stride + t0, sum_lanes(part[g]));
    }
}

// acc[g] += sum over t of p[g][t] v[t], for N vectors of head_dim.
template <int G, int N, class T>
inline void add_strip(const float* p, int64_t p_stride, const T* v, const int64_t* rows, int64_t head_dim, float* acc,
                      const Ahead<T>& ahead) {
    vec sum[G][N];
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) sum[g][n] = load(acc + g * head_dim + n * W);
    for (int t = 0; t < GROUP; t++) {
        ahead.ask(t, N * W);
        const T* row = v + rows[t];
        vec x[N];
        for (int n = 0; n < N; n++) x[n] = load(row + n * W);
        for (int g = 0; g < G; g++)
            for (int n = 0; n < N; n++) sum[g][n] += p[g * p_stride + t] * x[n];
    }
    for (int g = 0; g < G; g++)
        for (int n = 0; n < N; n++) store(acc + g * head_dim + n * W, sum[g][n]);
}

template <int G, int D, class T>
inline void add_values(const float* p, int64_t p_stride, const T* v, const int64_t* rows, int64_t head_dim, float* acc,
                       Ahead<T> ahead) {
    if (D) head_dim = D;
    int64_t d = 0;
    for (; d + STRIP * W <= head_dim; d += STRIP * W) {
        add_strip<G, STRIP>(p, p_stride, v + d, rows, head_dim, acc + d, ahead);
        if (ahead.cache) ahead.cache += STRIP * W;
    }
    for (; d < head_dim; d += W) {
        add_strip<G, 1>(p, p_stride, v + d, rows, head_dim, acc + d, ahead);
        if (ahead.cache) ahead.cache += W;
    }
}

// Softmax is associative: parts with (m, l, acc) make a whole, each weighed by 2^(m - the largest m).
// `parts` is n partial results of one sequence, `size` floats each; see Worker.
template <class T>
void merge(const Problem<T>& c, const float* parts, int64_t size, int64_t n, int64_t sequence) {
    std::vector<float> sum(c.head_dim);  // a multiple of W
    for (int64_t head = 0; head < c.heads; head++) {
        auto m = [&](int64_t i) { return parts[i * size + head]; };
        float most = m(0), total = 0;
        for (int64_t i = 1; i < n; i++) most = std::max(most, m(i));
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t i = 0; i < n; i++) {
            const float *l = parts + i * size + c.heads, *acc = l + c.heads + head * c.head_dim;
            float weight = exp2(vec{} + (m(i) - most))[0];
            total += weight * l[head];
            for (int64_t d = 0; d < c.head_dim; d++) sum[d] += weight * acc[d];
        }
        T* out = c.out + (sequence * c.heads + head) * c.head_dim;
        for (int64_t d = 0; d < c.head_dim; d += W) store(out + d, load(sum.data() + d) / total);
    }
}

struct Unit {
    int64_t sequence, start, tokens;
};

inline int64_t groups_of(const Unit& unit) { return (unit.tokens + GROUP - 1) / GROUP; }

// What the threads share. A sequence's units are neighbours, from `first` on; `open` counts those not yet finished.
struct Plan {
    std::vector<Unit> units;
    std::vector<int64_t> first;
    std::vector<std::atomic<int64_t>> open;
    std::atomic<int64_t> next{0};
    float* partials;
    int64_t partial_size;
};

// One unit after another, until none is left. Partial i is [heads] m, [heads] l, [heads][head_dim] acc.
template <int D, class T>
struct Worker {
    const Problem<T>& c;
    Plan& plan;
    int64_t padded;  // split rounded up to whole groups
    std::vector<float> q, s;
    std::vector<int64_t> rows, next_rows;

    Worker(const Problem<T>& c, Plan& plan)
        : c(c), plan(plan), padded((c.split + GROUP - 1) / GROUP * GROUP), q(c.heads * c.head_dim),
          s(c.heads * padded), rows(padded), next_rows(padded) {}

    void run() {
        int64_t i = plan.next++, n = plan.units.size();
        if (i < n) locate(plan.units[i], rows);
        while (i < n) {
            const Unit& unit = plan.units[i];
            float *m = plan.partials + i * plan.partial_size, *l = m + c.heads, *acc = l + c.heads;
            int64_t groups = groups_of(unit);
            scores(unit, groups);
            softmax(unit.tokens, groups * GROUP, m, l);
            i = plan.next++;
            if (i < n) locate(plan.units[i], next_rows);
            values(groups, acc, i < n ? groups_of(plan.units[i]) : 0);
            std::swap(rows, next_rows);
            if (--plan.open[unit.sequence] == 0) merge_sequence(unit.sequence);
        }
    }

    void merge_sequence(int64_t b) {
        int64_t first = plan.first[b], n = plan.first[b + 1] - first;
        merge(c, plan.partials + first * plan.partial_size, plan.partial_size, n, b);
    }

    // Where each token's row starts. The last group is filled up by repeating the last token: no unused slot is read.
    void locate(const Unit& unit, std::vector<int64_t>& where) {
        const int32_t* table = c.tables + unit.sequence * c.table_width;
        int64_t row_size = c.kv_heads * c.head_dim, t = 0;
        while (t < unit.tokens) {
            int64_t block = (unit.start + t) / c.block_size, offset = (unit.start + t) % c.block_size;
            int64_t slot = int64_t(table[block]) * c.block_size + offset;
            for (; offset < c.block_size && t < unit.tokens; offset++, t++, slot++) where[t] = slot * row_size;
        }
        for (; t % GROUP; t++) where[t] = where[unit.tokens - 1];
    }

    void scores(const Unit& unit, int64_t groups) {
        const T* query = c.q + unit.sequence * c.heads * c.head_dim;
        const float scale = c.scale * 1.44269504f;  // log2(e): powers of two are what a processor computes
        for (int64_t i = 0; i < c.heads * c.head_dim; i += W) store(q.data() + i, load(query + i) * scale);
        int64_t group_heads = c.heads / c.kv_heads;
        for (int64_t i = 0; i < groups; i++) {
            const int64_t* here = rows.data() + i * GROUP;
            for (int64_t kv = 0; kv < c.kv_heads; kv++) {
                Ahead<T> soon = ahead(c.k, groups, i, kv, c.v, rows, groups);
                for (int64_t g = 0; g < group_heads; g += ROWS) {
                    int64_t head = kv * group_heads + g;
                    with_count<ROWS>(group_heads - g, [&](auto G) {
                        score<G, D>(q.data() + head * c.head_dim, c.k + kv * c.head_dim, here, c.head_dim,
                                    s.data() + head * padded + i * GROUP, padded, soon);
                    });
                    soon.cache = nullptr;
                }
            }
        }
    }

    // What lies AHEAD_BYTES behind head `kv` of group `i`; past the last group it is the start of what comes `then`.
    Ahead<T> ahead(const T* cache, int64_t groups, int64_t i, int64_t kv, const T* then,
                   const std::vector<int64_t>& then_rows, int64_t then_groups) {
        int64_t piece_bytes = GROUP * c.head_dim * int64_t(sizeof(T));
        int64_t piece = i * c.kv_heads + kv + std::max<int64_t>(1, AHEAD_BYTES / piece_bytes);
        int64_t group = piece / c.kv_heads, head = piece % c.kv_heads;
        if (group < groups) return {cache + head * c.head_dim, rows.data() + group * GROUP};
        group -= groups;
        if (group < then_groups) return {then + head * c.head_dim, then_rows.data() + group * GROUP};
        return {nullptr, nullptr};
    }

    // Scores become weights 2^(s - m); the repeated tokens weigh nothing.
    void softmax(int64_t tokens, int64_t filled, float* m, float* l) {
        for (int64_t head = 0; head < c.heads; head++) {
            float* x = s.data() + head * padded;
            vec most = load(x);
            for (int64_t t = W; t < filled; t += W) most = load(x + t) > most ? load(x + t) : most;
            m[head] = most[0];
            for (int i = 1; i < W; i++) m[head] = std::max(m[head], most[i]);
            vec sum = {};
            for (int64_t t = 0; t < filled; t += W) store(x + t, exp2(load(x + t) - m[head]));
            for (int64_t t = tokens; t < filled; t++) x[t] = 0;
            for (int64_t t = 0; t < filled; t += W) sum += load(x + t);
            l[head] = sum_all(sum);
        }
    }

    void values(int64_t groups, float* acc, int64_t next_groups) {
        std::fill(acc, acc + c.heads * c.head_dim, 0.0f);
        int64_t group_heads = c.heads / c.kv_heads;
        for (int64_t i = 0; i < groups; i++) {
            const int64_t* here = rows.data() + i * GROUP;
            for (int64_t kv = 0; kv < c.kv_heads; kv++) {
                Ahead<T> soon = ahead(c.v, groups, i, kv, c.k, next_rows, next_groups);
                for (int64_t g = 0; g < group_heads; g += ROWS) {
                    int64_t head = kv * group_heads + g;
                    with_count<ROWS>(group_heads - g, [&](auto G) {
                        add_values<G, D>(s.data() + head * padded + i * GROUP, padded, c.v + kv * c.head_dim, here,
                                         c.head_dim, acc + head * c.head_dim, soon);
                    });
                    soon.cache = nullptr;
                }
            }
        }
    }
};

template <int D, class T>
int decode(const Problem<T>& c, int64_t num_blocks, int threads) {
    Plan plan;
    plan.open = std::vector<std::atomic<int64_t>>(c.batch);
    for (int64_t b = 0; b < c.batch; b++) {
        int64_t len = c.lens[b], blocks = (len + c.block_size - 1) / c.block_size;
        if (len < 1 || blocks > c.table_width) return 1;
        for (int64_t i = 0; i < blocks; i++) {
            int32_t block = c.tables[b * c.table_width + i];
            if (block < 0 || block >= num_blocks) return 2;
        }
        plan.first.push_back(plan.units.size());
        for (int64_t t = 0; t < len; t += c.split) plan.units.push_back({b, t, std::min(c.split, len - t)});
        plan.open[b] = plan.units.size() - plan.first[b];
    }
    plan.first.push_back(plan.units.size());
    plan.partial_size = c.heads * (2 + c.head_dim);
    static thread_local std::vector<float> partials;  // kept from call to call
    if (partials.size() < plan.units.size() * plan.partial_size) partials.resize(plan.units.size() * plan.partial_size);
    plan.partials = partials.data();
    if (threads == 1 || plan.units.size() == 1) {
        Worker<D, T>(c, plan).run();
        return 0;
    }
#pragma omp parallel num_threads(threads)
    Worker<D, T>(c, plan).run();
    return 0;
}

}  // namespace

extern "C" {

// head_dim must be a multiple of this.
int nanoengine_lanes() { return W; }

// 0: done. 1: a context length that its row of the block table cannot hold. 2: a block number outside the cache.
int nanoengine_paged_decode(int is_bf16, const void* q, const void* k, const void* v, const int32_t* tables,
                            const int32_t* lens, void* out, int64_t batch, int64_t heads, int64_t kv_heads,
                            int64_t head_dim, int64_t num_blocks, int64_t block_size, int64_t table_width, float scale,
                            int64_t split, int threads) {
    return with_type(is_bf16, [&](auto zero) {
        using T = decltype(zero);
        Problem<T> c{(const T*)q, (const T*)k, (const T*)v, (T*)out, tables, lens, batch, heads, kv_heads, head_dim,
                     block_size, table_width, scale, split};
        if (head_dim == 64) return decode<64>(c, num_blocks, threads);
        if (head_dim == 128) return decode<128>(c, num_blocks, threads);
        return decode<0>(c, num_blocks, threads);
    });
}

// Copies rows of `row_bytes`, `k_stride` and `v_stride` bytes apart, to their slots; slot -1 is skipped.
// 0: done. 1: a slot beyond the cache.
int nanoengine_store_kv(const char* k, const char* v, char* k_cache, char* v_cache, const int64_t* slots, int64_t n,
                        int64_t num_slots, int64_t row_bytes, int64_t k_stride, int64_t v_stride) {
    for (int64_t i = 0; i < n; i++)
        if (slots[i] >= num_slots) return 1;
    for (int64_t i = 0; i < n; i++) {
        if (slots[i] < 0) continue;
        std::memcpy(k_cache + slots[i] * row_bytes, k + i * k_stride, row_bytes);
        std::memcpy(v_cache + slots[i] * row_bytes, v + i * v_stride, row_bytes);
    }
    return 0;
}
}
