// What a layer does to rows of activations: its matrices times few rows, RMSNorm, the gate of its MLP.
//
// A decode step has one row per request. Its matrices are then read once and hardly computed with, so the product is a
// matter of keeping memory busy: weights stay as they are stored, row after row, and the next rows are asked for while
// these are used. With many rows the arithmetic counts, and a library does it better.

#include "lanes.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

constexpr int ROWS = 4;                     // rows of the matrix handled together
constexpr int64_t PARALLEL_FROM = 1 << 16;  // elements from which an operation is worth waking threads for

// The lanes of part[b][first + r] add up to w[r] . x[b], for ROWS rows of w and N of x.
template <int N, class T>
inline void dot(const T* w, const float* x, int64_t in, vec (*part)[W], int first) {
    vec sum[N][ROWS] = {};
    for (int64_t i = 0; i < in; i += W) {
        vec a[ROWS];
        for (int r = 0; r < ROWS; r++) {
            a[r] = load(w + r * in + i);
            __builtin_prefetch((const char*)(w + (r + ROWS) * in + i));
        }
        for (int b = 0; b < N; b++) {
            vec y = load(x + b * in + i);
            for (int r = 0; r < ROWS; r++) sum[b][r] += a[r] * y;
        }
    }
    for (int b = 0; b < N; b++)
        for (int r = 0; r < ROWS; r++) part[b][first + r] = sum[b][r];
}

// W outputs of N rows: y[b][0 .. W) = w x[b] + bias.
template <int N, class T>
inline void outputs(const T* w, const T* bias, const float* x, T* y, int64_t in, int64_t out) {
    vec part[N][W];
    for (int r = 0; r < W; r += ROWS) dot<N>(w + r * in, x, in, part, r);
    for (int b = 0; b < N; b++) {
        vec sum = sum_lanes(part[b]);
        store(y + b * out, bias ? sum + load(bias) : sum);
    }
}

template <class T>
void linear(const T* w, const T* bias, const T* x, T* y, int64_t n, int64_t in, int64_t out, int threads) {
    static thread_local std::vector<float> wide;  // kept from call to call
    wide.resize(n * in);
    for (int64_t i = 0; i < n * in; i += W) store(wide.data() + i, load(x + i));
    const float* rows = wide.data();
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t o = 0; o < out; o += W)
        for (int64_t b = 0; b < n; b += BATCH)
            with_count<BATCH>(n - b, [&](auto count) {
                outputs<count>(w + o * in, bias ? bias + o : nullptr, rows + b * in, y + b * out + o, in, out);
            });
}

// y = x / sqrt(mean(x^2) + eps) * weight
template <class T>
void rms_norm(const T* x, const T* weight, T* y, int64_t n, int64_t width, float eps, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && n * width >= PARALLEL_FROM)
    for (int64_t b = 0; b < n; b++) {
        const T* row = x + b * width;
        vec squares = {};
        for (int64_t i = 0; i < width; i += W) squares += load(row + i) * load(row + i);
        float scale = 1 / std::sqrt(sum_all(squares) / width + eps);
        for (int64_t i = 0; i < width; i += W) store(y + b * width + i, load(row + i) * scale * load(weight + i));
    }
}

// y = gate / (1 + e^-gate) * up, for rows of gate and up side by side.
template <class T>
void silu_mul(const T* x, T* y, int64_t n, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && n * width >= PARALLEL_FROM)
    for (int64_t b = 0; b < n; b++) {
        const T *gate = x + b * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += W) {
            vec g = load(gate + i);
            vec e = exp2((g < 0 ? g : -g) * 1.44269504f);  // e^-|g| cannot overflow
            store(y + b * width + i, (g < 0 ? e : vec{} + 1.0f) / (1.0f + e) * g * load(up + i));
        }
    }
}

}  // namespace

extern "C" {

// How many rows share one pass over a matrix.
int nanoengine_batch() { return BATCH; }

void nanoengine_linear(int is_bf16, const void* w, const void* bias, const void* x, void* y, int64_t n, int64_t in,
                       int64_t out, int threads) {
    with_type(is_bf16, [&](auto zero) {
        using T = decltype(zero);
        linear((const T*)w, (const T*)bias, (const T*)x, (T*)y, n, in, out, threads);
    });
}

void nanoengine_rms_norm(int is_bf16, const void* x, const void* weight, void* y, int64_t n, int64_t width, float eps,
                         int threads) {
    with_type(is_bf16, [&](auto zero) {
        using T = decltype(zero);
        rms_norm((const T*)x, (const T*)weight, (T*)y, n, width, eps, threads);
    });
}

void nanoengine_silu_mul(int is_bf16, const void* x, void* y, int64_t n, int64_t width, int threads) {
    with_type(is_bf16, [&](auto zero) {
        using T = decltype(zero);
        silu_mul((const T*)x, (T*)y, n, width, threads);
    });
}
}
