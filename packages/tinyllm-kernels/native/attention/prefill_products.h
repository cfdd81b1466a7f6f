// The product of a few rows with a panel of columns, summed in registers.
//
// Lanes run along the columns, so that each number of a row meets a whole vector of the panel, and
// no lanes have to be added up. Numbers are floats, or pairs of bfloat16 that lie along the depth,
// where the instruction set has sums of their products.
#pragma once

#include <cstdint>
#include <type_traits>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

// Two numbers of 16 bits, the first in the lower half.
using Pair = uint32_t;

// Rows and vectors of columns whose products stay in registers.
#if defined(__SSE2__) && !defined(__AVX__)
inline constexpr int kTileRows = 3;
#else
inline constexpr int kTileRows = 6;
#endif
inline constexpr int kTileVectors = W == 16 ? 4 : 2;
inline constexpr int kPanel = kTileVectors * W;  // columns

// How many steps of depth a number of type E takes.
template <typename E>
inline constexpr int kDepth = std::is_same_v<E, Pair> ? 2 : 1;

inline Floats multiply_add(Floats sum, float a, const float* b) { return sum + a * load(b); }

#if defined(__AVX512BF16__)
inline Floats multiply_add(Floats sum, Pair a, const Pair* b) {
  Words columns;
  std::memcpy(&columns, b, sizeof columns);
  return std::bit_cast<Floats>(_mm512_dpbf16_ps(std::bit_cast<__m512>(sum),
                                                std::bit_cast<__m512bh>(Words{} + a),
                                                std::bit_cast<__m512bh>(columns)));
}
#endif

// c = a b times `scale`, or, if `Add`, c += a b: kTileRows rows of `a` and N vectors of columns of
// `b`, whose rows are kPanel apart.
template <bool Add, int N, typename E>
void multiply_vectors(const E* a, int64_t a_stride, const E* b, int64_t depth, float scale,
                      float* c, int64_t c_stride) {
  Floats sums[kTileRows][N];
#pragma GCC unroll 6
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[m][n] = Add ? load(c + m * c_stride + n * W) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 6
    for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        sums[m][n] = multiply_add(sums[m][n], a[m * a_stride + k], b + k * kPanel + n * W);
      }
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kTileRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      store(c + m * c_stride + n * W, Add ? sums[m][n] : sums[m][n] * scale);
    }
  }
}

// The same for any number of columns of one panel, up to the end of a vector.
template <bool Add, typename E>
void multiply_panel(const E* a, int64_t a_stride, const E* b, int64_t depth, float scale,
                    float* c, int64_t c_stride, int64_t columns) {
  const int64_t vectors = (columns + W - 1) / W;
  if (vectors >= kTileVectors) {
    return multiply_vectors<Add, kTileVectors>(a, a_stride, b, depth, scale, c, c_stride);
  }
  for (int64_t n = 0; n < vectors; ++n) {
    multiply_vectors<Add, 1>(a, a_stride, b + n * W, depth, scale, c + n * W, c_stride);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
