// Prefill in bfloat16 with vector instructions that multiply bfloat16. For AMX,
// matmul/bfloat16/amx.h takes the place of this file. Both have the functions `multiply_bfloat16`,
// `plan_bfloat16` and `bfloat16_scratch`.
//
// x is bfloat16 already. It is packed once for all panels of w, in tiles of kTokenTile tokens. A
// panel, some rows of w, is rounded to bfloat16 when it is unpacked. The file of an instruction
// set, avx512.h or neon.h, has two functions:
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

// Computes a part of y: tokens of x times at most kPanelRows rows of w. `scratch` has the panel,
// then kTokenTile sums for each of its rows.
template <typename Format>
void multiply_bfloat16(const LinearTask& t, const LinearRange& range, float* scratch) {
  const int64_t rows = range.last_row - range.first_row;
  const int64_t pairs = row_pairs(t.w->columns);  // of columns
  const BFloat16Rows panel = unpack_panel<Format>(*t.w, range.first_row, rows, scratch);
  float* sums = scratch + panel_floats(t.w->columns);  // rows x kTokenTile
  for (int64_t m = range.first_token; m < range.last_token; m += kTokenTile) {
    const uint32_t* tokens = t.x_packed + m / kTokenTile * pairs * kTokenTile;  // a packed tile
    const int64_t end = std::min<int64_t>(m + kTokenTile, range.last_token);
    multiply_tile(tokens, panel, end - m, rows, pairs, sums);
    store_transposed<BFloat16>(t, m, end, range.first_row, rows, sums, kTokenTile);
  }
}

// Sets `part_rows` and `part_tokens`. Panels are small if x is a single tile of tokens: then they
// stay in the first-level cache from unpacking to multiplication. Interleaved rows are separated in
// whole groups of rows, so small panels could separate some rows twice. Tokens are divided among
// parts if there are fewer panels than wanted parts.
inline void plan_bfloat16(LinearTask& t, int64_t threads) {
  const int64_t wanted_parts = kPartsPerThread * threads;
  const bool is_small = t.rows <= kTokenTile && !t.w->interleaved;
  t.part_rows = is_small ? kSmallPanelRows : kPanelRows;
  const int64_t panels = ceil_div(t.w->rows, t.part_rows);
  const int64_t token_ranges = ceil_div(wanted_parts, panels);
  const int64_t tiles = ceil_div(t.rows, kTokenTile);
  t.part_tokens = std::max<int64_t>(ceil_div(tiles, token_ranges), 1) * kTokenTile;
}

// Floats of scratch memory for each thread.
inline int64_t bfloat16_scratch(const LinearTask& t) {
  return panel_floats(t.w->columns) + kPanelRows * kTokenTile;
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
