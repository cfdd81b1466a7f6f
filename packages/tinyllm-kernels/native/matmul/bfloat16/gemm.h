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

#include "matmul/bfloat16/panel.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kTileTokens = 32;

}  // namespace tinyllm::TINYLLM_TIER

#if defined(__AVX512BF16__)
#include "matmul/bfloat16/avx512.h"
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "matmul/bfloat16/neon.h"
#endif

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_BFLOAT16)

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
    put_squares<BFloat16>(t, m, end, range.first_row, rows, sums, kTileTokens);
  }
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
