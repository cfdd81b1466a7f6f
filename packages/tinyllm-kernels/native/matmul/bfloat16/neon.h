// Tiles of four numbers of bfloat16: one instruction multiplies two rows of four with two rows of four
// and adds up all four sums, four times the work of a multiplication of floats.
//
// Of a tile the first four numbers of all tokens lie side by side, then the second four: two tokens
// are an operand as they lie, and two rows of w are put together from their halves.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "matmul/bfloat16/panel.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kQuad = 4;      // numbers of 16 bits
inline constexpr int kOperands = 4;  // of tokens, and of rows of w, whose sums stay in registers
inline constexpr int kTogether = 2 * kOperands;

// Packs tokens of x `M K` from tile `first` to `last`. What is missing of a token's last four numbers
// is zero. What is missing in the last tile may be anything: nobody reads its sums.
inline void pack_tiles(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                       uint32_t* tiles) {
  const int64_t pairs = pairs_of(columns);
  constexpr int64_t kNumbers = 32;  // at once: a cache line of each token
  for (int64_t tile = first; tile < last; ++tile) {
    uint32_t* to = tiles + tile * pairs * kTileTokens;
    const int64_t tokens = std::min<int64_t>(kTileTokens, rows - tile * kTileTokens);
    for (int64_t from = 0; from < columns; from += kNumbers) {
      const int64_t end = std::min<int64_t>(from + kNumbers, columns);
      for (int64_t i = 0; i < tokens; ++i) {
        const uint16_t* token = x + (tile * kTileTokens + i) * columns;
        for (int64_t k = from; k < end; k += kQuad) {
          uint64_t quad = 0;
          std::memcpy(&quad, token + k, std::min<int64_t>(kQuad, end - k) * sizeof *token);
          std::memcpy(to + k / 2 * kTileTokens + i * 2, &quad, sizeof quad);
        }
      }
    }
  }
}

// Eight rows of w, which may be the same ones, times eight tokens from `tokens` on: all sums stay in
// registers. `sums` has those of a row side by side.
inline void multiply_quads(const uint32_t* tokens, const uint16_t* const* rows, int64_t pairs,
                           float* sums) {
  float32x4_t total[kOperands][kOperands] = {};
  for (int64_t p = 0; p < pairs; p += 2) {
    bfloat16x8_t x[kOperands];
    for (int i = 0; i < kOperands; ++i) {
      x[i] = vreinterpretq_bf16_u32(vld1q_u32(tokens + p * kTileTokens + 4 * i));
    }
    for (int n = 0; n < kOperands; ++n) {
      const uint16x8_t both = vcombine_u16(vld1_u16(rows[2 * n] + 2 * p),
                                           vld1_u16(rows[2 * n + 1] + 2 * p));
      const bfloat16x8_t w = vreinterpretq_bf16_u16(both);
      for (int i = 0; i < kOperands; ++i) total[n][i] = vbfmmlaq_f32(total[n][i], w, x[i]);
    }
  }
  for (int n = 0; n < kOperands; ++n) {
    float* to = sums + 2 * n * kTileTokens;
    for (int i = 0; i < kOperands; ++i) {
      vst1_f32(to + 2 * i, vget_low_f32(total[n][i]));
      vst1_f32(to + kTileTokens + 2 * i, vget_high_f32(total[n][i]));
    }
  }
}

// A tile of so many tokens times the rows of a panel. Sums of a row lie side by side; there is room
// for those of whole eights of rows, and behind the last row comes the last row again.
inline void multiply_tile(const uint32_t* tile, const Pairs& w, int64_t tokens, int64_t rows,
                          int64_t pairs, float* sums) {
  static_assert(kPairPanel % kTogether == 0 && kTileTokens % kTogether == 0);
  for (int64_t n = 0; n < rows; n += kTogether) {
    const uint16_t* of_w[kTogether];
    for (int i = 0; i < kTogether; ++i) of_w[i] = w.rows + std::min(n + i, rows - 1) * w.stride;
    for (int64_t m = 0; m < tokens; m += kTogether) {
      multiply_quads(tile + 2 * m, of_w, pairs, sums + n * kTileTokens + m);
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
