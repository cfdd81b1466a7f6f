// Prefill in bfloat16, for instruction sets whose vectors multiply it. For AMX see
// matmul/bfloat16/amx.h, which has the same four functions.
//
// x is in bfloat16 already and is packed once for all panels, a tile of kTokenTile tokens at a
// time. A panel of w is rounded to bfloat16 when it is unpacked. Each instruction set has a file
// with two functions:
//
//   pack_tokens    packs tiles of tokens of x
//   multiply_tile  multiplies a tile of tokens by the rows of a panel
#pragma once

#include <algorithm>

#include "matmul/bfloat16/panel.h"
#include "matmul/linear.h"
#include "matmul/store.h"

#if defined(__AVX512BF16__)
#include "matmul/bfloat16/avx512.h"
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include "matmul/bfloat16/neon.h"
#endif

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_BFLOAT16)

// Computes a part of at most kPanelRows rows of w.
template <typename Format>
void multiply_bfloat16(const LinearTask& t, const LinearRange& range, float* scratch) {
  const int64_t rows = range.last_row - range.first_row, pairs = row_pairs(t.w->columns);
  const BFloat16Rows panel = unpack_panel<Format>(*t.w, range.first_row, rows, scratch);
  float* sums = scratch + panel_floats(t.w->columns);  // rows x kTokenTile
  for (int64_t m = range.first_token; m < range.last_token; m += kTokenTile) {
    const uint32_t* tokens = t.x_packed + m / kTokenTile * pairs * kTokenTile;
    const int64_t end = std::min<int64_t>(m + kTokenTile, range.last_token);
    multiply_tile(tokens, panel, end - m, rows, pairs, sums);
    store_transposed<BFloat16>(t, m, end, range.first_row, rows, sums, kTokenTile);
  }
}

// Sets the size of the parts. A panel that a single tile of tokens meets is small, so that it stays
// in the first-level cache. Interleaved rows are separated in whole panels. Tokens are divided if
// there are too few panels for the threads.
inline void plan_bfloat16(LinearTask& t, int64_t threads) {
  const int64_t wanted_parts = kPartsPerThread * threads;
  const bool is_small = t.rows <= kTokenTile && !t.w->interleaved;
  t.part_rows = is_small ? kSmallPanelRows : kPanelRows;
  const int64_t panels = ceil_div(t.w->rows, t.part_rows);
  const int64_t token_ranges = ceil_div(wanted_parts, panels);
  const int64_t tiles = ceil_div(t.rows, kTokenTile);
  t.part_tokens = std::max<int64_t>(ceil_div(tiles, token_ranges), 1) * kTokenTile;
}

inline int64_t bfloat16_scratch(const LinearTask& t) {
  return panel_floats(t.w->columns) + kPanelRows * kTokenTile;
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
