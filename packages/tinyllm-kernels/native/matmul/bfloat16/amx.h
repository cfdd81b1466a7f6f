// Many rows of x times w in tiles, for the matrix unit of AMX.
//
// 32 rows of w meet 32 tokens: four tiles of sums, for which two tiles of each operand are loaded, so
// that an instruction costs one load. Columns come in blocks; between two of these the sums of all
// tokens wait in memory. So a block of w is unpacked once for all tokens of a part, and it is the
// tokens that stream past it, out of the second-level cache.
#pragma once

#include <algorithm>

#include "matmul/bfloat16/gemm.h"
#include "isa/tile_registers.h"
#include "matmul/bfloat16/amx_weights.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_TILES)

inline constexpr int kStepColumns = 32;  // that a tile has
inline constexpr int kStepPairs = kStepColumns / 2;
inline constexpr int64_t kTokenBytes = 1100 << 10;  // of a part, in a second-level cache of 2 MB

// Packs tokens of x `M K` from tile `first` to `last`, as `pack_tiles` does but with whole steps of
// columns; what is missing is zero.
inline void pack_whole_tiles(const uint16_t* x, int64_t rows, int columns, int64_t first,
                             int64_t last, uint32_t* tiles) {
  const int64_t pairs = packed_pairs(columns);
  for (int64_t m = first * kTileTokens; m < last * kTileTokens; m += W) {
    uint32_t* to = tiles + m / kTileTokens * pairs * kTileTokens + m % kTileTokens;
    for (int64_t p = 0; p < pairs; p += kStepPairs) {
      const int64_t numbers = std::min<int64_t>(columns - 2 * p, kStepColumns);
      Words square[W] = {};
      for (int i = 0; i < W && m + i < rows; ++i) {
        std::memcpy(&square[i], x + (m + i) * columns + 2 * p, numbers * sizeof *x);
      }
      transpose(square);
      for (int i = 0; i < W; ++i) {
        std::memcpy(to + (p + i) * kTileTokens, &square[i], sizeof square[i]);
      }
    }
  }
}

// So many steps of a block of w times the same columns of a tile of tokens, of which the second half
// may be missing. Adds the products to `sums`, unless these are the first; after each step some of
// the next block is unpacked.
template <bool Whole, typename Unpack>
void multiply_block(TileRegisters& registers, const uint16_t* w, const uint32_t* tokens,
                    int64_t steps, bool first, float* sums, Unpack unpack) {
  constexpr int64_t w_stride = kBlockColumns * sizeof *w;
  constexpr int64_t stride = kTileTokens * sizeof *tokens;  // of tokens, and of sums
  constexpr int64_t lower = kBlockRows / 2;
  if (first) {
    registers.zero<0>(), registers.zero<1>(), registers.zero<2>(), registers.zero<3>();
  } else {
    registers.load<0>(sums, stride);
    registers.load<2>(sums + lower * kTileTokens, stride);
    if constexpr (Whole) {
      registers.load<1>(sums + W, stride);
      registers.load<3>(sums + lower * kTileTokens + W, stride);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    registers.load<4>(w, w_stride);
    registers.load<6>(tokens, stride);
    registers.multiply_add<0, 4, 6>();
    if constexpr (Whole) {
      registers.load<7>(tokens + W, stride);
      registers.multiply_add<1, 4, 7>();
    }
    registers.load<5>(w + lower * kBlockColumns, w_stride);
    registers.multiply_add<2, 5, 6>();
    if constexpr (Whole) registers.multiply_add<3, 5, 7>();
    unpack();
    w += kStepColumns, tokens += kStepPairs * kTileTokens;
  }
  registers.store<0>(sums, stride);
  registers.store<2>(sums + lower * kTileTokens, stride);
  if constexpr (Whole) {
    registers.store<1>(sums + W, stride);
    registers.store<3>(sums + lower * kTileTokens + W, stride);
  }
}

// A part: rows of w times its tokens.
template <typename Format>
void multiply_in_registers(const LinearTask& t, const LinearRange& range, float* scratch) {
  const Weights& w = *t.w;
  const int64_t pairs = packed_pairs(w.columns);
  const int64_t tiles = (range.last_token - range.first_token + kTileTokens - 1) / kTileTokens;
  float* sums = scratch + kBlockRows * kBlockColumns;
  TileRegisters registers;
  WeightBlocks<Format> blocks(w, range.first_row, range.last_row,
                              reinterpret_cast<uint16_t*>(scratch));
  for (int64_t n = range.first_row; n < range.last_row; n += kBlockRows) {
    for (int64_t k = 0, last = 0; !last; k += kBlockColumns) {
      last = k + kBlockColumns >= w.columns;  // once at least: without columns the sums are zero
      const uint16_t* block = blocks.take();
      const int64_t steps = std::min<int64_t>(kBlockColumns, 2 * pairs - k) / kStepColumns;
      const int64_t rows = steps ? (kBlockRows + tiles * steps - 1) / (tiles * steps) : 0;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t m = range.first_token + tile * kTileTokens;
        const int64_t end = std::min<int64_t>(m + kTileTokens, range.last_token);
        const uint32_t* tokens = t.tiles + (m / kTileTokens * pairs + k / 2) * kTileTokens;
        float* of_tile = sums + tile * kBlockRows * kTileTokens;
        const auto unpack = [&] { blocks.unpack(rows); };
        if (end - m > W) {
          multiply_block<true>(registers, block, tokens, steps, k == 0, of_tile, unpack);
        } else {
          multiply_block<false>(registers, block, tokens, steps, k == 0, of_tile, unpack);
        }
        if (last) {
          put_squares<BFloat16>(t, m, end, n, std::min<int64_t>(kBlockRows, range.last_row - n),
                                of_tile, kTileTokens);
        }
      }
    }
  }
}

// What `part_rows` and `part_tokens` should be: as many tokens as the cache has room for, and up to
// 128 rows, of which only the first block is unpacked while nothing is multiplied; less where that
// makes too few parts for the threads.
inline void plan_tiles(LinearTask& t, int threads) {
  constexpr int64_t parts_a_thread = 4, most_rows = 128;
  const int64_t wanted = parts_a_thread * threads;
  const int64_t fair_rows = t.w->rows / wanted / kBlockRows * kBlockRows;
  t.part_rows = std::clamp<int64_t>(fair_rows, kBlockRows, most_rows);
  const int64_t panels = (t.w->rows + t.part_rows - 1) / t.part_rows;
  const int64_t tiles = (t.rows + kTileTokens - 1) / kTileTokens;
  const int64_t tile_bytes = packed_pairs(t.w->columns) * kTileTokens * int64_t{sizeof *t.tiles};
  const int64_t most_tiles = kTokenBytes / std::max<int64_t>(tile_bytes, 1);
  const int64_t fair_tiles = panels < wanted ? tiles * panels / wanted : tiles;
  t.part_tokens = std::max<int64_t>(std::min(most_tiles, fair_tiles), 1) * kTileTokens;
}

// Floats that a part needs: two blocks of w and the sums of its tokens.
inline int64_t tiles_scratch(const LinearTask& t) {
  return kBlockRows * (kBlockColumns + t.part_tokens);
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
