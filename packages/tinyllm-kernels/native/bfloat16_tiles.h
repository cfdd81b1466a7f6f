// Many rows of x times a panel of w in bfloat16, for instruction sets that multiply it.
//
// x is in bfloat16 as it comes; a panel of w is rounded to it when it is unpacked, which is less than
// what rounding x has lost already. x is packed once for all panels, 32 tokens at a time, as the
// instruction set wants it, which has a file of its own with the same parts:
//
//   pack_tiles     tokens to tiles
//   multiply_tile  a tile times a panel of rows of w
#pragma once

#include <algorithm>

#include "bfloat16_panel.h"
#include "linear.h"
#include "numbers.h"
#include "put.h"
#include "transpose.h"
#include "vectors.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kTileTokens = 32;

}  // namespace tinyllm::TINYLLM_TIER

#if defined(__AVX512BF16__)
#include "bfloat16_pairs.h"
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "bfloat16_quads.h"
#endif

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_BFLOAT16)

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
    multiply_tile(tile, w, end - m, rows, pairs, sums);
    put_tile(t, m, end, range.first_row, rows, sums);
  }
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
