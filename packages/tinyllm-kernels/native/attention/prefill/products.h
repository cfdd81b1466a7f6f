// Products of a few rows with a panel of columns, for prefill: scores and weighted sums of values.
//
// Lanes run along the columns of a panel. Each element of a row is multiplied by a whole vector of
// the panel, so that no lanes have to be added up. For scores the columns are keys and the depth is
// the features. For weighted sums the columns are features and the depth is the keys.
//
// An element E is a float or, if the instruction set multiplies bfloat16, a pair of bfloat16
// numbers that are consecutive along the depth. Integers are in attention/prefill/integers.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

// Two bfloat16 numbers, the first in the lower 16 bits.
using BFloat16Pair = uint32_t;

// The micro-tile: rows, and vectors of columns, whose sums stay in registers.
#if defined(__SSE2__) && !defined(__AVX__)
inline constexpr int kRegisterRows = 3;
#else
inline constexpr int kRegisterRows = 6;
#endif
inline constexpr int kRegisterVectors = W == 16 ? 4 : 2;
inline constexpr int kPanelWidth = kRegisterVectors * W;  // columns of a panel

// Numbers of an element.
template <typename E>
inline constexpr int kNumbers = std::is_same_v<E, BFloat16Pair> ? 2 : 1;

// Adds to each lane of `sum` the products of element a with element b[lane].
inline Floats multiply_add(Floats sum, float a, const float* b) { return sum + a * load(b); }

#if defined(__AVX512BF16__)
inline Floats multiply_add(Floats sum, BFloat16Pair a, const BFloat16Pair* b) {
  return bit_cast<Floats>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(Words{} + a),
                                           bit_cast<__m512bh>(load_words(b))));
}
#endif

// The micro-kernel: c = scale * (a b), or c += a b if `Add`: kRegisterRows rows of a times N
// vectors of columns of b. `depth` is in elements. Rows of b are kPanelWidth elements apart.
template <bool Add, int N, typename E>
void prefill_micro_kernel(const E* a, int64_t a_stride, const E* b, int64_t depth, float scale,
                          float* c, int64_t c_stride) {
  Floats sums[kRegisterRows][N];
#pragma GCC unroll 6
  for (int m = 0; m < kRegisterRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[m][n] = Add ? load(c + m * c_stride + n * W) : Floats{};
  }
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 6
    for (int m = 0; m < kRegisterRows; ++m) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        sums[m][n] = multiply_add(sums[m][n], a[m * a_stride + k], b + k * kPanelWidth + n * W);
      }
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRegisterRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      store(c + m * c_stride + n * W, Add ? sums[m][n] : sums[m][n] * scale);
    }
  }
}

// Calls `work(first, std::integral_constant<int, N>)` for the first `columns` columns of a panel,
// rounded up to whole vectors: N vectors from column `first` on.
template <typename Work>
void for_panel_vectors(int64_t columns, Work work) {
  if (columns > kPanelWidth - W) {
    return work(0, std::integral_constant<int, kRegisterVectors>());
  }
  for (int64_t n = 0; n < columns; n += W) work(n, std::integral_constant<int, 1>());
}

// The same for the first `columns` columns of a panel.
template <bool Add, typename E>
void multiply_panel(const E* a, int64_t a_stride, const E* b, int64_t depth, float scale, float* c,
                    int64_t c_stride, int64_t columns) {
  for_panel_vectors(columns, [&]<int N>(int64_t n, std::integral_constant<int, N>) {
    prefill_micro_kernel<Add, N>(a, a_stride, b + n, depth, scale, c + n, c_stride);
  });
}

}  // namespace tinyllm::TINYLLM_ISA
