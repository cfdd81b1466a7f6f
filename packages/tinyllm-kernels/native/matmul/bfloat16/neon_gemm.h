// Prefill in bfloat16 with NEON. For AMX, matmul/bfloat16/amx_gemm.h takes the place of this file,
// for AVX-512 matmul/bfloat16/avx512_gemm.h.
//
// One instruction multiplies two rows of four numbers with two rows of four numbers and adds up all
// four dot products: four times the work of a multiplication of floats. A tile of tokens has the
// first four numbers of all tokens side by side, then the second four, and so on. So an operand of
// two tokens is one load. An operand of w is combined from the numbers of two rows.
//
// x is bfloat16 already. It is packed once for all panels of w, in tiles of kTokenTile tokens. A
// panel, some rows of w, is rounded to bfloat16 when it is packed.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "matmul/bfloat16/neon_panel.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kQuad = 4;      // bfloat16 numbers in 64 bits
inline constexpr int kOperands = 4;  // operands of tokens, and of w, whose sums stay in registers
inline constexpr int kTileRows = 2 * kOperands;

// Packs tiles `first` to `last` of x `M K`. The last four numbers of a token are padded with zeros.
// Missing tokens of the last tile are left as they are, because their sums are not stored.
inline void pack_tokens(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                        uint32_t* packed) {
  const int64_t pairs = row_pairs(columns);
  constexpr int64_t kLineNumbers = 32;  // a cache line of each token
  for (int64_t tile = first; tile < last; ++tile) {
    uint32_t* to = packed + tile * pairs * kTokenTile;
    const int64_t tokens = std::min<int64_t>(kTokenTile, rows - tile * kTokenTile);
    for (int64_t from = 0; from < columns; from += kLineNumbers) {
      const int64_t end = std::min<int64_t>(from + kLineNumbers, columns);
      for (int64_t i = 0; i < tokens; ++i) {
        const uint16_t* token = x + (tile * kTokenTile + i) * columns;
        for (int64_t k = from; k < end; k += kQuad) {
          uint64_t quad = 0;
          std::memcpy(&quad, token + k, std::min<int64_t>(kQuad, end - k) * sizeof *token);
          std::memcpy(to + k / 2 * kTokenTile + i * 2, &quad, sizeof quad);
        }
      }
    }
  }
}

// The micro-kernel: multiplies eight tokens by eight rows of w. All sums stay in registers. `sums`
// gets eight sums for each row, and its rows are kTokenTile apart.
inline void bfloat16_micro_kernel(const uint32_t* tokens, const uint16_t* const* rows,
                                  int64_t pairs, float* sums) {
  float32x4_t total[kOperands][kOperands] = {};
  for (int64_t p = 0; p < pairs; p += 2) {
    bfloat16x8_t x[kOperands];
    for (int i = 0; i < kOperands; ++i) {
      x[i] = vreinterpretq_bf16_u32(vld1q_u32(tokens + p * kTokenTile + 4 * i));
    }
    for (int n = 0; n < kOperands; ++n) {
      const uint16x8_t two_rows = vcombine_u16(vld1_u16(rows[2 * n] + 2 * p),
                                               vld1_u16(rows[2 * n + 1] + 2 * p));
      const bfloat16x8_t w = vreinterpretq_bf16_u16(two_rows);
      for (int i = 0; i < kOperands; ++i) total[n][i] = vbfmmlaq_f32(total[n][i], w, x[i]);
    }
  }
  for (int n = 0; n < kOperands; ++n) {
    float* to = sums + 2 * n * kTokenTile;
    for (int i = 0; i < kOperands; ++i) {
      vst1_f32(to + 2 * i, vget_low_f32(total[n][i]));
      vst1_f32(to + kTokenTile + 2 * i, vget_high_f32(total[n][i]));
    }
  }
}

// Multiplies a tile, of which `count` tokens exist, by the rows of a panel. `sums` gets kTokenTile
// sums for each row, and has memory for a multiple of eight rows: the last row is repeated.
inline void multiply_tile(const uint32_t* tokens, const BFloat16Rows& panel, int64_t count,
                          int64_t rows, int64_t pairs, float* sums) {
  static_assert(kPanelRows % kTileRows == 0 && kTokenTile % kTileRows == 0);
  for (int64_t n = 0; n < rows; n += kTileRows) {
    const uint16_t* tile_rows[kTileRows];
    for (int i = 0; i < kTileRows; ++i) {
      tile_rows[i] = panel.rows + std::min(n + i, rows - 1) * panel.stride;
    }
    for (int64_t m = 0; m < count; m += kTileRows) {
      bfloat16_micro_kernel(tokens + 2 * m, tile_rows, pairs, sums + n * kTokenTile + m);
    }
  }
}

// Computes a part of y: tokens of x times at most kPanelRows rows of w. `scratch` has the panel,
// then kTokenTile sums for each of its rows.
inline void bfloat16_gemm(const LinearTask& t, const LinearRange& range, float* scratch) {
  const int64_t rows = range.last_row - range.first_row;
  const int64_t pairs = row_pairs(t.w->columns);  // of columns
  const BFloat16Rows panel = pack_panel(*t.w, range.first_row, rows, scratch);
  float* sums = scratch + panel_floats(t.w->columns);  // rows x kTokenTile
  for (int64_t m = range.first_token; m < range.last_token; m += kTokenTile) {
    const uint32_t* tokens = t.x_packed + m / kTokenTile * pairs * kTokenTile;  // a packed tile
    const int64_t end = std::min<int64_t>(m + kTokenTile, range.last_token);
    multiply_tile(tokens, panel, end - m, rows, pairs, sums);
    store_transposed<BFloat16>(t, m, end, range.first_row, rows, sums, kTokenTile);
  }
}

// Sets `part_rows` and `part_tokens`. Panels are small if x is a single tile of tokens: then they
// stay in the first-level cache from packing to multiplication. Interleaved rows are deinterleaved
// in whole groups of rows, so small panels could deinterleave some rows twice. Tokens are divided
// among parts if there are fewer panels than wanted parts.
inline void plan_bfloat16(LinearTask& t, int64_t parts) {
  const bool is_small = t.tokens <= kTokenTile && !t.w->interleaved;
  t.part_rows = is_small ? kSmallPanelRows : kPanelRows;
  t.part_tokens = divided_tokens(t, parts);
}

// Floats of scratch memory for each thread.
inline int64_t bfloat16_scratch(const LinearTask& t) {
  return panel_floats(t.w->columns) + kPanelRows * kTokenTile;
}

}  // namespace tinyllm::TINYLLM_ISA
