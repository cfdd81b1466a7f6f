// Prefill in float32: tiles of tokens times panels of w that are dequantized once.
//
// Lanes are tokens, or rows of w for very few tokens. x is packed once for all panels: a tile has
// the first numbers of its tokens side by side, then their second numbers, and so on. A number of w
// is broadcast to all lanes. Sums stay in registers for a block of columns and in memory between
// blocks, so that a block of a tile and of a panel stay in the first-level cache.
#pragma once

#include <algorithm>

#include "ceil_div.h"
#include "isa/transpose.h"
#include "matmul/float/block_prefetch.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kFloatTile = 2 * W;      // tokens in a tile
inline constexpr int kFloatPanel = 3 * W;     // rows of w in a panel
inline constexpr int kFloatDepth = 2048 / W;  // columns of a block, in whole groups
static_assert(kTokenTile % kFloatTile == 0 && kFloatDepth % 128 == 0);

// Tokens of a part, at most.
inline constexpr int64_t kFloatTokenRange = 512;

// Tokens of a prompt for which lanes are rows of w, at most.
inline constexpr int kFewFloatTokens = 4;

// A register of floats. If a vector takes two registers, GCC keeps arrays of vectors in memory.
#if defined(__AVX__)
using FloatRegister = Floats;
#else
using FloatRegister [[gnu::vector_size(16)]] = float;
#endif
inline constexpr int kRegisterFloats = sizeof(FloatRegister) / sizeof(float);
inline constexpr int kTileRegisters = kFloatTile / kRegisterFloats;  // even

// Rows of w whose sums with the tokens of a tile stay in registers.
#if defined(__AVX512F__)
inline constexpr int kFloatRows = 12;
#elif defined(__AVX__) || defined(__aarch64__)
inline constexpr int kFloatRows = 6;
#else
inline constexpr int kFloatRows = 2;
#endif

// Packs tiles `first` to `last` of kTokenTile rows of x `M K`. The last row is repeated for missing
// ones.
template <typename T>
void pack_floats(const T* x, int64_t rows, int columns, int64_t first, int64_t last,
                 float* packed) {
  const int64_t end = std::min(ceil_div(rows, W) * W, last * kTokenTile);
  for (int64_t m = first * kTokenTile; m < end; m += W) {
    const T* tokens[W];
    for (int i = 0; i < W; ++i) tokens[i] = x + std::min(m + i, rows - 1) * columns;
    float* to = packed + m / kFloatTile * kFloatTile * columns + m % kFloatTile;
    int k = 0;
    for (; k + W <= columns; k += W) {
      Words square[W];
      for (int i = 0; i < W; ++i) square[i] = bit_cast<Words>(load_as_floats(tokens[i] + k));
      transpose(square);
      for (int i = 0; i < W; ++i, to += kFloatTile) store(to, bit_cast<Floats>(square[i]));
    }
    for (; k < columns; ++k, to += kFloatTile) {
      for (int i = 0; i < W; ++i) to[i] = to_float(tokens[i][k]);
    }
  }
}

// The micro-kernel: adds the products of the first R registers of tokens and N rows of a panel,
// over `depth` columns, to `sums`. Rows of `x` and `sums` are kFloatTile apart, rows of the panel
// kFloatDepth. With `kPrefetches`, takes a step of `prefetch` in each column.
template <int N, int R, bool kPrefetches>
void float_micro_kernel(const float* x, const float* panel, int depth, float* sums,
                        BlockPrefetch& prefetch) {
  FloatRegister totals[N][R] = {};
  for (int k = 0; k < depth; ++k, x += kFloatTile) {
    if constexpr (kPrefetches) prefetch.step();
    FloatRegister tokens[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) std::memcpy(&tokens[r], x + r * kRegisterFloats, sizeof tokens[r]);
#pragma GCC unroll 24
    for (int n = 0; n < N; ++n) {
      const float weight = panel[n * kFloatDepth + k];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) totals[n][r] += tokens[r] * weight;
    }
  }
#pragma GCC unroll 24
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* at = sums + n * kFloatTile + r * kRegisterFloats;
      FloatRegister total;
      std::memcpy(&total, at, sizeof total);
      total += totals[n][r];
      std::memcpy(at, &total, sizeof total);
    }
  }
}

// Multiplies R registers of tokens of a tile by the first `rows` rows of a panel, rounded up to a
// multiple of N.
template <int N, int R, bool kPrefetches>
void multiply_panel_rows(const float* x, const float* panel, int64_t rows, int depth, float* sums,
                         BlockPrefetch& prefetch) {
  static_assert(kFloatPanel % N == 0);
  for (int64_t n = 0; n < rows; n += N) {
    float_micro_kernel<N, R, kPrefetches>(x, panel + n * kFloatDepth, depth, sums + n * kFloatTile,
                                          prefetch);
  }
}

// Adds the products of the first kFewFloatTokens tokens and W rows of a panel to `sums`, in the
// order of float_micro_kernel. Lanes are rows, because a vector of tokens would be nearly empty.
// Squares of the panel are transposed in registers.
inline void few_tokens_micro_kernel(const float* x, const float* panel, int depth, float* sums,
                                    BlockPrefetch& prefetch) {
  Floats totals[kFewFloatTokens] = {};
  const auto add = [&](int k, Floats weights) {
#pragma GCC unroll 4
    for (int m = 0; m < kFewFloatTokens; ++m) totals[m] += weights * x[k * kFloatTile + m];
  };
  int k = 0;
  for (; k + W <= depth; k += W) {
    Words square[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) square[i] = bit_cast<Words>(load(panel + i * kFloatDepth + k));
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) add(k + i, bit_cast<Floats>(square[i]));
    for (int i = 0; i < W * W / 32; ++i) prefetch.step();  // as many lines as the square in 16 bits
  }
  for (; k < depth; ++k) {
    Floats weights;
    for (int i = 0; i < W; ++i) weights[i] = panel[i * kFloatDepth + k];
    add(k, weights);
  }
  for (int i = 0; i < W; ++i) {
    for (int m = 0; m < kFewFloatTokens; ++m) sums[i * kFloatTile + m] += totals[m][i];
  }
}

// Computes the sums of a part with at most kFewFloatTokens tokens. W rows are read from their first
// to their last column, as far as possible in the order of memory.
template <typename Format>
void sum_few_tokens(const LinearTask& t, const LinearRange& range, float* panel, float* sums) {
  const Weights& w = *t.w;
  const auto [m0, m1, n0, n1] = range;
  const float* x = reinterpret_cast<const float*>(t.x_packed) + m0 * w.columns;
  for (int64_t n = n0; n < n1; n += W, sums += W * kFloatTile) {
    for (int k0 = 0; k0 < w.columns; k0 += kFloatDepth) {
      const int k1 = std::min(k0 + kFloatDepth, w.columns);
      for (int64_t i = 0; i < W; ++i) {  // the last row is repeated for missing ones
        dequantize_row<Format>(w, std::min(n + i, n1 - 1), k0, k1, panel + i * kFloatDepth);
      }
      BlockPrefetch prefetch = prefetch_block<Format>(w, n + W, W, k0, k1);
      few_tokens_micro_kernel(x + k0 * kFloatTile, panel, k1 - k0, sums, prefetch);
    }
  }
}

// Computes the sums of a part. The next part is prefetched.
template <typename Format>
void sum_tiles(const LinearTask& t, const LinearRange& range, float* panel, float* sums) {
  const Weights& w = *t.w;
  const auto [m0, m1, n0, n1] = range;
  const int64_t rows = n1 - n0;
  // The last row is repeated for missing ones, because the sums of some rows are computed together.
  constexpr int kTogether = 2 * kFloatRows;
  const int64_t padded = ceil_div(rows, kTogether) * kTogether;
  const auto* x = reinterpret_cast<const float*>(t.x_packed);
  for (int k0 = 0; k0 < w.columns; k0 += kFloatDepth) {
    const int k1 = std::min(k0 + kFloatDepth, w.columns);
    for (int64_t n = 0; n < padded; ++n) {
      dequantize_row<Format>(w, std::min(n0 + n, n1 - 1), k0, k1, panel + n * kFloatDepth);
    }
    BlockPrefetch prefetch = prefetch_block<Format>(w, n1, kFloatPanel, k0, k1);
    for (int64_t m = m0; m < m1; m += kFloatTile) {
      const auto multiply =
          m1 - m <= W ? multiply_panel_rows<kTogether, kTileRegisters / 2, true>
          : m == m0   ? multiply_panel_rows<kFloatRows, kTileRegisters, true>
                      : multiply_panel_rows<kFloatRows, kTileRegisters, false>;
      multiply(x + m * w.columns + k0 * kFloatTile, panel, rows, k1 - k0,
               sums + (m - m0) * kFloatPanel, prefetch);
    }
    prefetch.finish();
  }
}

// Computes a part of at most kFloatPanel rows of w. `scratch` has the panel, then the sums of each
// tile.
template <typename Format>
void float_gemm(const LinearTask& t, const LinearRange& range, float* scratch) {
  const auto [m0, m1, n0, n1] = range;
  float *panel = scratch, *sums = scratch + kFloatPanel * kFloatDepth;
  std::fill_n(sums, ceil_div(m1 - m0, kFloatTile) * kFloatTile * kFloatPanel, 0.0f);
  if (m1 - m0 <= kFewFloatTokens) {
    sum_few_tokens<Format>(t, range, panel, sums);
  } else {
    sum_tiles<Format>(t, range, panel, sums);
  }
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t m = m0; m < m1; m += kFloatTile) {
      const int64_t end = std::min<int64_t>(m + kFloatTile, m1);
      store_transposed<T>(t, m, end, n0, n1 - n0, sums + (m - m0) * kFloatPanel, kFloatTile);
    }
  });
}

// Sets `part_rows` and `part_tokens`. If there are fewer panels than wanted parts, tokens are
// divided, too.
inline void plan_floats(LinearTask& t, int64_t parts) {
  t.part_rows = kFloatPanel;
  t.part_tokens = std::min(divided_tokens(t, parts), kFloatTokenRange);
}

// Floats of scratch memory for each thread.
inline int64_t float_scratch(const LinearTask& t) {
  const int64_t tokens = std::min(t.part_tokens, ceil_div(t.tokens, kFloatTile) * kFloatTile);
  return kFloatPanel * (kFloatDepth + tokens);
}

}  // namespace tinyllm::TINYLLM_ISA
