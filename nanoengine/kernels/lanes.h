// Short vectors of float as wide as the machine's, with no intrinsics: GCC and Clang turn the types below into AVX-512,
// AVX2 or NEON. Just what the kernels need: load and store float or bfloat16, sum lanes, 2^x.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace {

// W: lanes of a vector. STRIP vectors for each of four heads, or four rows of a matrix for each of BATCH rows of
// activations, are what a loop can sum in registers.
#if defined(__AVX512F__)
constexpr int W = 16, STRIP = 4, BATCH = 4;
#elif defined(__AVX__)
constexpr int W = 8, STRIP = 2, BATCH = 2;
#elif defined(__SSE2__)
constexpr int W = 4, STRIP = 2, BATCH = 2;
#else
constexpr int W = 4, STRIP = 4, BATCH = 4;
#endif

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef uint32_t uvec __attribute__((vector_size(4 * W)));
typedef uint16_t hvec __attribute__((vector_size(2 * W)));

struct bf16 {
    uint16_t bits;
};

inline vec load(const float* p) {
    vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

inline vec load(const bf16* p) {  // a bfloat16 is the upper half of a float
    hvec half;
    std::memcpy(&half, p, sizeof half);
    return (vec)(__builtin_convertvector(half, uvec) << 16);
}

inline void store(float* p, vec x) { std::memcpy(p, &x, sizeof x); }

inline void store(bf16* p, vec x) {  // to nearest, ties to even
    uvec bits = (uvec)x;
    uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    hvec half = __builtin_convertvector(x == x ? rounded : uvec{} + 0x7fc0, hvec);  // NaN must not round to infinity
    std::memcpy(p, &half, sizeof half);
}

template <int Odd, size_t... I>
inline vec every_second(vec a, vec b, std::index_sequence<I...>) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, int(2 * I + Odd)...);
#else
    return __builtin_shuffle(a, b, ivec{int(2 * I + Odd)...});
#endif
}

// Lane i of the result is the sum of all lanes of x[i]: log2(W) rounds that each add neighbours.
inline vec sum_lanes(vec* x) {
    constexpr auto lanes = std::make_index_sequence<W>();
#pragma GCC unroll 4
    for (int n = W; n > 1; n /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < n / 2; i++)
            x[i] = every_second<0>(x[2 * i], x[2 * i + 1], lanes) + every_second<1>(x[2 * i], x[2 * i + 1], lanes);
    return x[0];
}

inline float sum_all(vec x) {
    float sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
}

// 2^x for x <= 0, to about 1e-7; NaN stays NaN. 2^x = 2^n 2^f with n the nearest integer; 2^f by its Taylor series.
inline vec exp2(vec x) {
    x = x < -126.0f ? vec{} - 126.0f : x;
    const vec shift = vec{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
    vec n = x + shift;
    ivec exponent = ((ivec)n - (ivec)shift + 127) << 23;
    vec f = x - (n - shift);
    vec y = f * 1.5403530e-4f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    return y * (vec)exponent;
}

// f(n), at most f(Most), with n known at compile time: so that loops of that length unroll. n >= 1.
template <int Most, class F>
inline void with_count(int64_t n, F&& f) {
    if constexpr (Most > 1)
        if (n < Most) return with_count<Most - 1>(n, f);
    f(std::integral_constant<int, Most>());
}

template <class F>
inline auto with_type(bool is_bf16, F&& f) {
    return is_bf16 ? f(bf16()) : f(float());
}

}  // namespace
