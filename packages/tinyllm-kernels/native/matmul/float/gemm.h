// Prefill in float32: many rows of x times a panel of w that is unpacked once.
#pragma once

#include <algorithm>

#include "isa/unroll.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kFloatPanel = 24;    // rows of w in a panel
inline constexpr int kFloatDepth = 2048;  // columns of a panel that are unpacked at once, at most

// A tile of results in registers: MR rows of x times NR rows of w, which are MR * NR vectors of
// sums and MR + 1 vectors of operands.
inline constexpr int MR = W == 8 ? 3 : 4;
inline constexpr int NR = W == 16 ? 6 : 4;

// Adds the products of M rows of x with N rows of the panel to `out`, whose rows are kFloatPanel
// apart. Lanes run along the columns.
template <int M, int N>
void multiply_tile(const float* x, int64_t x_stride, const float* panel, int depth, float* out) {
  Floats sums[M][N] = {};
  int k = 0;
  for (; k + W <= depth; k += W) {
    Floats xs[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) xs[m] = load(x + m * x_stride + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      Floats ws = load(panel + n * depth + k);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][n] += xs[m] * ws;
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int n = 0; n < N; ++n) {
      float total = sum(sums[m][n]);
      for (int rest = k; rest < depth; ++rest) {
        total += x[m * x_stride + rest] * panel[n * depth + rest];
      }
      out[m * kFloatPanel + n] += total;
    }
  }
}

// The same for any number of rows of the panel.
template <int M>
void multiply_panel_rows(const float* x, int64_t x_stride, const float* panel, int rows, int depth,
                         float* out) {
  int n = 0;
  for (; n + NR <= rows; n += NR) {
    multiply_tile<M, NR>(x, x_stride, panel + n * depth, depth, out + n);
  }
  for (; n < rows; ++n) multiply_tile<M, 1>(x, x_stride, panel + n * depth, depth, out + n);
}

// Computes a part of at most kFloatPanel rows of w. `scratch` has the panel, then the results.
template <typename Format>
void multiply_float_panel(const LinearTask& t, const LinearRange& range, float* scratch) {
  const Weights& w = *t.w;
  const auto [m0, m1, n0, n1] = range;
  const int rows = static_cast<int>(n1 - n0);
  float* panel = scratch;
  float* out = scratch + kFloatPanel * std::min(w.columns, kFloatDepth);
  std::fill_n(out, (m1 - m0) * kFloatPanel, 0.0f);
  for (int k0 = 0; k0 < w.columns; k0 += kFloatDepth) {
    const int depth = std::min(kFloatDepth, w.columns - k0);
    for (int n = 0; n < rows; ++n) {
      decode_row<Format>(w, n0 + n, k0, k0 + depth, panel + n * depth);
    }
    for (int64_t m = m0; m < m1; m += MR) {
      with_constant<MR>(m1 - m, [&]<int M>() {
        multiply_panel_rows<M>(t.x + m * w.columns + k0, w.columns, panel, rows, depth,
                               out + (m - m0) * kFloatPanel);
      });
    }
  }
  for (int64_t m = m0; m < m1; ++m) {
    for (int n = 0; n < rows; ++n) {
      store_result(t, m, n0 + n, out[(m - m0) * kFloatPanel + n]);
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
