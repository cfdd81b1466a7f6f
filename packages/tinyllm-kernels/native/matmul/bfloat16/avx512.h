// Tiles of pairs of bfloat16: one instruction multiplies 16 pairs with 16 pairs and adds both products
// of each to a float, twice the work of a multiplication of floats.
//
// Lanes are tokens: of a tile all first pairs lie side by side, then all second ones. A pair of w is
// one number of 32 bits, which goes to all lanes.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "matmul/bfloat16/panel.h"
#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

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

// A tile of so many tokens times the rows of a panel. Sums of a row lie side by side.
inline void multiply_tile(const uint32_t* tile, const Pairs& w, int64_t tokens, int64_t rows,
                          int64_t pairs, float* sums) {
  if (tokens <= W / 2) {
    multiply_panel_pairs<HalfFloats, HalfWords, 1>(tile, w, rows, pairs, sums);
  } else if (tokens <= W) {
    multiply_panel_pairs<Floats, Words, 1>(tile, w, rows, pairs, sums);
  } else {
    multiply_panel_pairs<Floats, Words, 2>(tile, w, rows, pairs, sums);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
