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

#include "bfloat16_panel.h"
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

#if defined(__AVX512BF16__)

// Packs tokens of x `M K` from tile `first` to `last`. What is missing in the last tile may be
// anything: each lane is a token of its own, and nobody reads that of one that is missing.
inline void pack_tiles(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                       uint32_t* tiles) {
  const int64_t pairs = pairs_of(columns);
  constexpr int64_t kPairs = 16;  // at once: a cache line of each token
  for (int64_t tile = first; tile < last; ++tile) {
    uint32_t* to = tiles + tile * pairs * kTileTokens;
    const int64_t tokens = std::min<int64_t>(kTileTokens, rows - tile * kTileTokens);
    for (int64_t p0 = 0; p0 < pairs; p0 += kPairs) {
      const int64_t p1 = std::min(p0 + kPairs, pairs);
      for (int64_t i = 0; i < tokens; ++i) {
        const uint16_t* token = x + (tile * kTileTokens + i) * columns;
        for (int64_t p = p0; p < p1; ++p) {
          uint32_t pair = 0;
          std::memcpy(&pair, token + 2 * p, 2 * p + 1 < columns ? 4 : 2);
          to[p * kTileTokens + i] = pair;
        }
      }
    }
  }
}

// Half a vector, which takes half the time, for a tile of few tokens.
using HalfFloats [[gnu::vector_size(2 * W)]] = float;
using HalfWords [[gnu::vector_size(2 * W)]] = uint32_t;

inline Floats add_products(Floats sums, Words a, Words b) {
  return std::bit_cast<Floats>(_mm512_dpbf16_ps(
      std::bit_cast<__m512>(sums), std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b)));
}

inline HalfFloats add_products(HalfFloats sums, HalfWords a, HalfWords b) {
  return std::bit_cast<HalfFloats>(_mm256_dpbf16_ps(
      std::bit_cast<__m256>(sums), std::bit_cast<__m256bh>(a), std::bit_cast<__m256bh>(b)));
}

// N rows of w times X vectors of tokens: all sums stay in registers.
template <typename Sums, typename Numbers, int N, int X>
void multiply_pairs(const uint32_t* tile, const Pairs& w, int64_t first, int64_t pairs,
                    float* sums) {
  constexpr int lanes = sizeof(Sums) / sizeof(float);
  Sums total[N][X] = {};
  for (int64_t p = 0; p < pairs; ++p) {
    Numbers tokens[X];
#pragma GCC unroll 2
    for (int i = 0; i < X; ++i) {
      std::memcpy(&tokens[i], tile + p * kTileTokens + i * lanes, sizeof tokens[i]);
    }
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      uint32_t pair;
      std::memcpy(&pair, w.rows + (first + n) * w.stride + 2 * p, sizeof pair);
#pragma GCC unroll 2
      for (int i = 0; i < X; ++i) {
        total[n][i] = add_products(total[n][i], tokens[i], Numbers{} + pair);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    std::memcpy(sums + (first + n) * kTileTokens, total[n], sizeof total[n]);
  }
}

// The same for any number of rows.
template <typename Sums, typename Numbers, int X>
void multiply_panel_pairs(const uint32_t* tile, const Pairs& w, int64_t rows, int64_t pairs,
                          float* sums) {
  constexpr int kTogether = 12;
  int64_t n = 0;
  for (; n + kTogether <= rows; n += kTogether) {
    multiply_pairs<Sums, Numbers, kTogether, X>(tile, w, n, pairs, sums);
  }
  for (; n < rows; ++n) multiply_pairs<Sums, Numbers, 1, X>(tile, w, n, pairs, sums);
}

// Sums of W rows of w from n0 on for W tokens from m on, turned to where they belong in y.
inline void put_square(const LinearTask& t, int64_t m, int64_t tokens, int64_t n0,
                       const float* sums) {
  Words square[W];
  for (int n = 0; n < W; ++n) square[n] = std::bit_cast<Words>(load(sums + n * kTileTokens));
  transpose(square);
  const BFloat16* bias = static_cast<const BFloat16*>(t.bias);
  for (int i = 0; i < tokens; ++i) {
    const int64_t at = (m + i) * t.w->rows + n0;
    Floats row = std::bit_cast<Floats>(square[i]);
    if (bias) row += load_as_floats(bias + n0);
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

// A part: rows of w times its tokens.
template <typename Format>
void multiply_tiles(const LinearTask& t, const LinearRange& range, float* scratch) {
  const int64_t rows = range.last_row - range.first_row, pairs = pairs_of(t.w->columns);
  const Pairs w = unpack_pairs<Format>(*t.w, range.first_row, rows, scratch);
  float* sums = scratch + panel_room(t.w->columns);
  for (int64_t m = range.first_token; m < range.last_token; m += kTileTokens) {
    const uint32_t* tile = t.tiles + m / kTileTokens * pairs * kTileTokens;
    const int64_t end = std::min<int64_t>(m + kTileTokens, range.last_token);
    if (end - m <= W / 2) {
      multiply_panel_pairs<HalfFloats, HalfWords, 1>(tile, w, rows, pairs, sums);
    } else if (end - m <= W) {
      multiply_panel_pairs<Floats, Words, 1>(tile, w, rows, pairs, sums);
    } else {
      multiply_panel_pairs<Floats, Words, 2>(tile, w, rows, pairs, sums);
    }
    put_tile(t, m, end, range.first_row, rows, sums);
  }
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
