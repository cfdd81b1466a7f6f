// bfloat16 products with AVX512_BF16.
//
// One instruction multiplies 16 pairs with 16 pairs and adds both products of a pair to a float:
// twice the work of a multiplication of floats. Lanes are tokens. A tile of tokens has the first
// pairs of all tokens side by side, then the second pairs, and so on. A pair of w is a 32-bit
// number that is broadcast to all lanes.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "isa/transpose.h"
#include "isa/vectors.h"
#include "matmul/bfloat16/panel.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_TIER {

// Packs W pairs of each of W tokens, whose rows are `columns` numbers apart. The rows of tokens after
// the last one are read as that token.
inline void pack_square(const uint16_t* x, int64_t last, int columns, uint32_t* packed) {
  Words square[W];
#pragma GCC unroll 16
  for (int64_t i = 0; i < W; ++i) {
    std::memcpy(&square[i], x + std::min(i, last) * columns, sizeof square[i]);
  }
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) std::memcpy(packed + i * kTokenTile, &square[i], sizeof square[i]);
}

// Packs tiles `first` to `last` of x `M K`. Lanes of missing tokens of the last tile have any
// numbers, because they are not stored.
inline void pack_tokens(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                        uint32_t* packed) {
  const int64_t pairs = row_pairs(columns);
  for (int64_t tile = first; tile < last; ++tile) {
    uint32_t* to = packed + tile * pairs * kTokenTile;
    const int64_t tokens = std::min<int64_t>(kTokenTile, rows - tile * kTokenTile);
    const uint16_t* from = x + tile * kTokenTile * columns;
    int64_t p = 0;
    for (; 2 * (p + W) <= columns; p += W) {
      for (int64_t i = 0; i < tokens; i += W) {
        pack_square(from + i * columns + 2 * p, tokens - 1 - i, columns, to + p * kTokenTile + i);
      }
    }
    for (; p < pairs; ++p) {
      for (int64_t i = 0; i < tokens; ++i) {
        uint32_t pair = 0;
        std::memcpy(&pair, from + i * columns + 2 * p, 2 * p + 1 < columns ? 4 : 2);
        to[p * kTokenTile + i] = pair;
      }
    }
  }
}

// Vectors of half the width, for tiles of at most W / 2 tokens. They take half the time.
using HalfVectorFloats [[gnu::vector_size(2 * W)]] = float;
using HalfVectorWords [[gnu::vector_size(2 * W)]] = uint32_t;

inline Floats add_products(Floats sums, Words a, Words b) {
  return std::bit_cast<Floats>(_mm512_dpbf16_ps(
      std::bit_cast<__m512>(sums), std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b)));
}

inline HalfVectorFloats add_products(HalfVectorFloats sums, HalfVectorWords a,
                                     HalfVectorWords b) {
  return std::bit_cast<HalfVectorFloats>(_mm256_dpbf16_ps(
      std::bit_cast<__m256>(sums), std::bit_cast<__m256bh>(a), std::bit_cast<__m256bh>(b)));
}

// Multiplies V vectors of tokens by N rows of the panel from `first` on. All sums stay in
// registers.
template <typename Sums, typename Pairs, int N, int V>
void multiply_rows(const uint32_t* tokens, const BFloat16Rows& panel, int64_t first, int64_t pairs,
                   float* sums) {
  constexpr int lanes = sizeof(Sums) / sizeof(float);
  Sums total[N][V] = {};
  for (int64_t p = 0; p < pairs; ++p) {
    Pairs x[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      std::memcpy(&x[v], tokens + p * kTokenTile + v * lanes, sizeof x[v]);
    }
#pragma GCC unroll 12
    for (int n = 0; n < N; ++n) {
      uint32_t pair;
      std::memcpy(&pair, panel.rows + (first + n) * panel.stride + 2 * p, sizeof pair);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        total[n][v] = add_products(total[n][v], x[v], Pairs{} + pair);
      }
    }
  }
  for (int n = 0; n < N; ++n) {
    std::memcpy(sums + (first + n) * kTokenTile, total[n], sizeof total[n]);
  }
}

// The same for all rows of the panel.
template <typename Sums, typename Pairs, int V>
void multiply_all_rows(const uint32_t* tokens, const BFloat16Rows& panel, int64_t rows,
                       int64_t pairs, float* sums) {
  constexpr int kTileRows = 12;
  int64_t n = 0;
  for (; n + kTileRows <= rows; n += kTileRows) {
    multiply_rows<Sums, Pairs, kTileRows, V>(tokens, panel, n, pairs, sums);
  }
  for (; n < rows; ++n) multiply_rows<Sums, Pairs, 1, V>(tokens, panel, n, pairs, sums);
}

// Multiplies a tile, of which `count` tokens exist, by the rows of a panel. `sums` gets kTokenTile
// sums for each row.
inline void multiply_tile(const uint32_t* tokens, const BFloat16Rows& panel, int64_t count,
                          int64_t rows, int64_t pairs, float* sums) {
  if (count <= W / 2) {
    multiply_all_rows<HalfVectorFloats, HalfVectorWords, 1>(tokens, panel, rows, pairs, sums);
  } else if (count <= W) {
    multiply_all_rows<Floats, Words, 1>(tokens, panel, rows, pairs, sums);
  } else {
    multiply_all_rows<Floats, Words, 2>(tokens, panel, rows, pairs, sums);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
