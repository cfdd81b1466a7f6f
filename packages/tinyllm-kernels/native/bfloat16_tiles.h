// Many rows of x times a panel of w in bfloat16, for instruction sets that multiply pairs of them.
//
// One instruction multiplies 16 pairs with 16 pairs and adds both products of each to a float: twice
// the work of a multiplication of floats. x is in bfloat16 as it comes; a panel of w is rounded to
// it when it is unpacked, which is less than what rounding x has lost already.
//
// Lanes are tokens. x is packed once for all panels: of 32 tokens at a time, all first pairs side by
// side, then all second ones. A pair of w is one number of 32 bits, which goes to all lanes.
#pragma once

#include <algorithm>

#include "linear.h"
#include "numbers.h"
#include "put.h"
#include "transpose.h"
#include "vectors.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kTileTokens = 32;

// Pairs in a row of so many numbers.
inline int64_t pairs_of(int columns) { return (columns + 1) / 2; }

#if defined(__AVX512BF16__)

// Packs tokens of x `M K` from tile `first` to `last`; what is missing in the last tile is zero.
inline void pack_tiles(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                       uint32_t* tiles) {
  const int64_t pairs = pairs_of(columns);
  constexpr int64_t kPairs = 16;  // at once: a cache line of each token
  for (int64_t tile = first; tile < last; ++tile) {
    uint32_t* to = tiles + tile * pairs * kTileTokens;
    for (int64_t p0 = 0; p0 < pairs; p0 += kPairs) {
      const int64_t p1 = std::min(p0 + kPairs, pairs);
      for (int64_t i = 0; i < kTileTokens; ++i) {
        const int64_t m = tile * kTileTokens + i;
        for (int64_t p = p0; p < p1; ++p) {
          uint32_t pair = 0;
          if (m < rows) std::memcpy(&pair, x + m * columns + 2 * p, 2 * p + 1 < columns ? 4 : 2);
          to[p * kTileTokens + i] = pair;
        }
      }
    }
  }
}

// N rows of w times X vectors of tokens: all sums stay in registers.
template <int N, int X>
void multiply_pairs(const uint32_t* tile, const uint16_t* w, int64_t stride, int64_t pairs,
                    float* sums) {
  __m512 total[N][X] = {};
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh tokens[X];
#pragma GCC unroll 2
    for (int i = 0; i < X; ++i) {
      tokens[i] = (__m512bh)_mm512_loadu_si512(tile + p * kTileTokens + i * W);
    }
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      int pair;
      std::memcpy(&pair, w + n * stride + 2 * p, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int i = 0; i < X; ++i) total[n][i] = _mm512_dpbf16_ps(total[n][i], tokens[i], both);
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int i = 0; i < X; ++i) _mm512_storeu_ps(sums + n * kTileTokens + i * W, total[n][i]);
  }
}

// The same for any number of rows.
template <int X>
void multiply_panel_pairs(const uint32_t* tile, const uint16_t* w, int64_t stride, int64_t rows,
                          int64_t pairs, float* sums) {
  constexpr int kTogether = 12;
  int64_t n = 0;
  for (; n + kTogether <= rows; n += kTogether) {
    multiply_pairs<kTogether, X>(tile, w + n * stride, stride, pairs, sums + n * kTileTokens);
  }
  for (; n < rows; ++n) {
    multiply_pairs<1, X>(tile, w + n * stride, stride, pairs, sums + n * kTileTokens);
  }
}

// Sums of W rows of w from n0 on for W tokens from m on, turned to where they belong in y.
inline void put_square(const LinearTask& t, int64_t m, int64_t tokens, int64_t n0,
                       const float* sums) {
  Words square[W];
  for (int n = 0; n < W; ++n) square[n] = std::bit_cast<Words>(load(sums + n * kTileTokens));
  transpose(square);
  const BFloat16* bias = static_cast<const BFloat16*>(t.bias);
  const Floats added = bias ? load_as_floats(bias + n0) : Floats{};
  for (int i = 0; i < tokens; ++i) {
    const int64_t at = (m + i) * t.w->rows + n0;
    Floats row = std::bit_cast<Floats>(square[i]) + added;
    if (t.residual) row += load_as_floats(static_cast<const BFloat16*>(t.residual) + at);
    store_floats(static_cast<BFloat16*>(t.y) + at, row);
  }
}

// The sums of a panel for some tokens of a tile, with bias and residual, to y.
inline void put_tile(const LinearTask& t, int64_t m0, int64_t m1, int64_t n0, int64_t rows,
                     const float* sums) {
  int64_t n = 0;
  for (; n + W <= rows; n += W) {
    for (int64_t m = m0; m < m1; m += W) {
      put_square(t, m, std::min<int64_t>(m1 - m, W), n0 + n, sums + n * kTileTokens + (m - m0));
    }
  }
  for (; n < rows; ++n) {
    for (int64_t m = m0; m < m1; ++m) put(t, m, n0 + n, sums[n * kTileTokens + (m - m0)]);
  }
}

// A part: rows of w, as numbers of `stride` from one to the next, times its tokens.
inline void multiply_tiles(const LinearTask& t, const LinearRange& range, const uint16_t* panel,
                           int64_t stride, float* scratch) {
  const int64_t rows = range.last_row - range.first_row, pairs = pairs_of(t.w->columns);
  for (int64_t m = range.first_token; m < range.last_token; m += kTileTokens) {
    const uint32_t* tile = t.tiles + m / kTileTokens * pairs * kTileTokens;
    const int64_t end = std::min<int64_t>(m + kTileTokens, range.last_token);
    (end - m > W ? multiply_panel_pairs<2> : multiply_panel_pairs<1>)(tile, panel, stride, rows,
                                                                      pairs, scratch);
    put_tile(t, m, end, range.first_row, rows, scratch);
  }
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
