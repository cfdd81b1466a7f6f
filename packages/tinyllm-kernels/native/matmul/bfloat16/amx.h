// Prefill in bfloat16 with the AMX matrix unit.
//
// A panel of w is 32 rows by 256 columns. It is multiplied by tiles of 32 tokens. Four tile
// registers have the sums, and two tile registers of each operand are loaded: one load for each of
// the four instructions. A panel is unpacked once for all tokens of a part, and the packed tokens
// are read from the second-level cache. Between two panels of the same rows the sums of all tokens
// are in memory.
//
// The matrix unit and the vector instructions work at the same time. So there is memory for two
// panels: while one is multiplied, the next one is unpacked, row by row, between the
// multiplications.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "isa/tile_registers.h"
#include "isa/transpose.h"
#include "matmul/bfloat16/round.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_TILES)

inline constexpr int kTileRows = 16;     // of a tile register
inline constexpr int kStepColumns = 32;  // columns of x and w that one instruction multiplies
inline constexpr int kStepPairs = kStepColumns / 2;

// Two panels are 32 KB, which stay in a first-level cache of 48 KB while tokens are read.
inline constexpr int kPanelRows = 2 * kTileRows, kPanelColumns = 256;

// Packed tokens of a part, which stay in a second-level cache of 2 MB.
inline constexpr int64_t kTokenBytes = 1100 << 10;

// Packs tiles `first` to `last` of x `M K`. A tile has the first pairs of all 32 tokens side by
// side, then the second pairs, and so on, in whole steps of 32 columns. Missing tokens and columns
// are zero.
inline void pack_tokens(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                        uint32_t* packed) {
  const int64_t pairs = packed_pairs(columns);
  for (int64_t m = first * kTokenTile; m < last * kTokenTile; m += W) {
    uint32_t* to = packed + m / kTokenTile * pairs * kTokenTile + m % kTokenTile;
    for (int64_t p = 0; p < pairs; p += kStepPairs) {
      const int64_t numbers = std::min<int64_t>(columns - 2 * p, kStepColumns);
      Words square[W] = {};
      for (int i = 0; i < W && m + i < rows; ++i) {
        std::memcpy(&square[i], x + (m + i) * columns + 2 * p, numbers * sizeof *x);
      }
      transpose(square);
      for (int i = 0; i < W; ++i) {
        std::memcpy(to + (p + i) * kTokenTile, &square[i], sizeof square[i]);
      }
    }
  }
}

// Unpacks the panels of some rows of w in order: the panels of the first 32 rows, from the first
// column to the last, then the panels of the next 32 rows. Missing rows and columns are zero.
template <typename Format>
class PanelUnpacker {
 public:
  // `memory` has two panels.
  PanelUnpacker(const Weights& w, int64_t first_row, int64_t last_row, uint16_t* memory)
      : w_(w),
        log2_group_(std::countr_zero(static_cast<unsigned>(std::max(w.group, 1)))),
        groups_(w.columns >> log2_group_),
        prefetch_bytes_(int64_t{kPanelRows} * w.columns / 2),
        first_row_(first_row),
        last_row_(last_row),
        next_panel_(memory),
        other_panel_(memory + kPanelRows * kPanelColumns) {}

  // Finishes the next panel and returns it: kPanelRows rows of kPanelColumns numbers. It is valid
  // until the next call.
  const uint16_t* next() {
    unpack(kPanelRows);
    const uint16_t* panel = next_panel_;
    std::swap(next_panel_, other_panel_);
    unpacked_rows_ = 0;
    first_column_ += kPanelColumns;
    if (first_column_ >= w_.columns) first_column_ = 0, first_row_ += kPanelRows;
    if (first_row_ >= last_row_) unpacked_rows_ = kPanelRows;  // there is no further panel
    return panel;
  }

  // Unpacks up to `rows` more rows of the panel that `next` will return.
  void unpack(int64_t rows) {
    for (; rows > 0 && unpacked_rows_ < kPanelRows; --rows, ++unpacked_rows_) {
      uint16_t* to = next_panel_ + unpacked_rows_ * kPanelColumns;
      const int64_t n = first_row_ + unpacked_rows_;
      const int depth = n < last_row_ ? std::min(kPanelColumns, w_.columns - first_column_) : 0;
      unpack_row(n, depth, to);
      std::fill_n(to + depth, kPanelColumns - depth, 0);
    }
  }

 private:
  // Writes `depth` numbers of row n from `first_column_` on.
  void unpack_row(int64_t n, int depth, uint16_t* to) const {
    const typename Format::Row row = Format::row(w_, n);
    if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
      std::memcpy(to, row + first_column_, depth * sizeof *to);
    } else if constexpr (Format::kScaled) {
      // Groups are 16 to 128 numbers, so that panels and rows are whole groups.
      const int group = w_.group;
      for (int i = 0; i < depth; i += group) {
        const int k = first_column_ + i;
        const Affine affine = Format::affine(w_, n * groups_ + (k >> log2_group_));
        unpack_group(row, k, group, affine, to + i);
      }
    } else {
      int i = 0;
      for (; i + W <= depth; i += W) store_rounded(Format::raw(row, first_column_ + i), to + i);
      for (; i < depth; ++i) {
        to[i] = from_float<BFloat16>(Format::one(row, first_column_ + i)).bits;
      }
    }
  }

  void unpack_group(const uint8_t* row, int k, int group, Affine affine, uint16_t* to) const {
    if constexpr (std::is_same_v<Format, Quantized<Mode::affine, 4>>) {
      const __m512i table = bfloat16_table(affine);
      const uint8_t* codes = row + static_cast<unsigned>(k) / 2;
      __builtin_prefetch(codes + prefetch_bytes_, 0, 2);  // to the second-level cache
      for (int i = 0; i < group; i += 2 * W, codes += W) {
        _mm512_storeu_si512(to + i, look_up(codes, table));
      }
    } else {
      for (int i = 0; i < group; i += W) {
        store_rounded(Format::raw(row, k + i) * affine.scale + affine.bias, to + i);
      }
    }
  }

  static void store_rounded(Floats v, uint16_t* to) {
    const Shorts numbers = round_to_bfloat16(v);
    std::memcpy(to, &numbers, sizeof numbers);
  }

  const Weights& w_;
  const int log2_group_;
  const int64_t groups_;          // in a row
  const int64_t prefetch_bytes_;  // from the 4-bit codes of a row to those of 32 rows later
  int64_t first_row_;             // of the next panel
  const int64_t last_row_;
  int first_column_ = 0;   // of the next panel
  int unpacked_rows_ = 0;  // rows of the next panel that are unpacked already
  uint16_t *next_panel_, *other_panel_;
};

// Multiplies a panel of w by a tile of tokens, over `steps` steps of 32 columns. `sums` has 32 rows
// of 32 tokens. The products are added to it, or replace it if `is_first`. kAllTokens is false if
// the tile has at most 16 tokens. The sums of tokens 16-31 are then undefined. Calls `unpack` after
// each step.
//
// Tile registers 0 to 3 have the sums: of rows 0-15 and tokens 0-15, of rows 0-15 and tokens 16-31,
// of rows 16-31 and tokens 0-15, of rows 16-31 and tokens 16-31. Registers 4 and 5 have rows of w,
// registers 6 and 7 tokens.
template <bool kAllTokens, typename Unpack>
void multiply_panel(TileRegisters& registers, const uint16_t* panel, const uint32_t* tokens,
                    int64_t steps, bool is_first, float* sums, Unpack unpack) {
  constexpr int64_t w_stride = kPanelColumns * sizeof *panel;  // bytes
  constexpr int64_t stride = kTokenTile * sizeof *tokens;      // bytes, of tokens and of sums
  float* lower_sums = sums + kTileRows * kTokenTile;           // of rows 16-31
  if (is_first) {
    registers.zero<0>(), registers.zero<1>(), registers.zero<2>(), registers.zero<3>();
  } else {
    registers.load<0>(sums, stride);
    registers.load<2>(lower_sums, stride);
    if constexpr (kAllTokens) {
      registers.load<1>(sums + W, stride);
      registers.load<3>(lower_sums + W, stride);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    registers.load<4>(panel, w_stride);
    registers.load<6>(tokens, stride);
    registers.multiply_add<0, 4, 6>();
    if constexpr (kAllTokens) {
      registers.load<7>(tokens + W, stride);
      registers.multiply_add<1, 4, 7>();
    }
    registers.load<5>(panel + kTileRows * kPanelColumns, w_stride);
    registers.multiply_add<2, 5, 6>();
    if constexpr (kAllTokens) registers.multiply_add<3, 5, 7>();
    unpack();
    panel += kStepColumns;
    tokens += kStepPairs * kTokenTile;
  }
  registers.store<0>(sums, stride);
  registers.store<2>(lower_sums, stride);
  if constexpr (kAllTokens) {
    registers.store<1>(sums + W, stride);
    registers.store<3>(lower_sums + W, stride);
  }
}

// Computes a part. `scratch` has two panels, then 32 x 32 sums for each tile of tokens.
template <typename Format>
void multiply_bfloat16(const LinearTask& t, const LinearRange& range, float* scratch) {
  const Weights& w = *t.w;
  const int64_t pairs = packed_pairs(w.columns);
  const int64_t tiles = ceil_div(range.last_token - range.first_token, kTokenTile);
  float* sums = scratch + kPanelRows * kPanelColumns;
  TileRegisters registers;
  PanelUnpacker<Format> panels(w, range.first_row, range.last_row,
                               reinterpret_cast<uint16_t*>(scratch));
  for (int64_t n = range.first_row; n < range.last_row; n += kPanelRows) {
    const int64_t rows = std::min<int64_t>(kPanelRows, range.last_row - n);
    // There is at least one panel: without columns the sums are zero.
    for (int64_t k = 0, is_last = 0; !is_last; k += kPanelColumns) {
      is_last = k + kPanelColumns >= w.columns;
      const uint16_t* panel = panels.next();
      const int64_t steps = std::min<int64_t>(kPanelColumns, 2 * pairs - k) / kStepColumns;
      // The next panel is unpacked evenly over all steps of all tiles.
      const int64_t rows_a_step = steps ? ceil_div(kPanelRows, tiles * steps) : 0;
      const auto unpack = [&] { panels.unpack(rows_a_step); };
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t m = range.first_token + tile * kTokenTile;
        const int64_t end = std::min<int64_t>(m + kTokenTile, range.last_token);
        const uint32_t* tokens = t.x_packed + (m / kTokenTile * pairs + k / 2) * kTokenTile;
        float* tile_sums = sums + tile * kPanelRows * kTokenTile;
        if (end - m > W) {
          multiply_panel<true>(registers, panel, tokens, steps, k == 0, tile_sums, unpack);
        } else {
          multiply_panel<false>(registers, panel, tokens, steps, k == 0, tile_sums, unpack);
        }
        if (is_last) store_transposed<BFloat16>(t, m, end, n, rows, tile_sums, kTokenTile);
      }
    }
  }
}

// Sets the size of the parts. A part has the tokens that fit in the second-level cache, and up to
// 128 rows of w, because nothing is multiplied while the first panel of a part is unpacked. Parts
// are smaller if there would be fewer than four for each thread.
inline void plan_bfloat16(LinearTask& t, int64_t threads) {
  constexpr int64_t kAmxPartsPerThread = 4, kMaxRows = 128;
  const int64_t wanted_parts = kAmxPartsPerThread * threads;
  const int64_t fair_rows = t.w->rows / wanted_parts / kPanelRows * kPanelRows;
  t.part_rows = std::clamp<int64_t>(fair_rows, kPanelRows, kMaxRows);
  const int64_t row_ranges = ceil_div(t.w->rows, t.part_rows);
  const int64_t tiles = ceil_div(t.rows, kTokenTile);
  const int64_t tile_bytes =
      packed_pairs(t.w->columns) * kTokenTile * int64_t{sizeof *t.x_packed};
  const int64_t max_tiles = kTokenBytes / std::max<int64_t>(tile_bytes, 1);
  const int64_t fair_tiles = row_ranges < wanted_parts ? tiles * row_ranges / wanted_parts : tiles;
  t.part_tokens = std::max<int64_t>(std::min(max_tiles, fair_tiles), 1) * kTokenTile;
}

inline int64_t bfloat16_scratch(const LinearTask& t) {
  return kPanelRows * (kPanelColumns + t.part_tokens);
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
