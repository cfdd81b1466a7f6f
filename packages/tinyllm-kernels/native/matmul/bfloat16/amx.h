// Prefill in bfloat16 with the AMX matrix unit.
//
// x is operand A, 16 tokens by 32 columns, as it lies in memory. w is operand B: see
// matmul/bfloat16/weight_tiles.h. A block is 32 tokens by a panel of 32 rows of w. Its sums stay in
// four tile registers over all columns, and are then rounded once.
//
// Each weight is unpacked once for all tokens of a part, between the products of its first block of
// tokens. If all tokens fit into the second-level cache, they are multiplied by one panel after the
// other. Otherwise a group of panels is unpacked to that cache, and tokens stream past it, or, if
// there are too few groups for the threads, tokens are divided into ranges that fit.
#pragma once

#include <algorithm>

#include "matmul/bfloat16/tile_block.h"
#include "matmul/bfloat16/unpackers.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kPanelRows = 2 * kTileRows;

// Bytes of x, or of the panels of a group, that stay in a second-level cache of 2 MB.
inline constexpr int64_t kTokenBytes = 1100 << 10, kGroupBytes = 1050 << 10;

// Rows of w in a panel. A panel of a gated product has as many rows of `up`.
inline int64_t rows_per_panel(const LinearTask& t) { return t.up ? kTileRows : kPanelRows; }

inline int64_t panel_numbers(const LinearTask& t) { return steps_of(t) * kStepNumbers; }

// Bytes of x in a part.
inline int64_t token_bytes(const LinearTask& t) {
  return t.part_tokens * steps_of(t) * kStepColumns * int64_t{sizeof(BFloat16)};
}

inline bool are_tokens_cached(const LinearTask& t) { return token_bytes(t) <= kTokenBytes; }

// Panels that memory is needed for: a group, or one if tokens are cached.
inline int64_t panels_in_memory(const LinearTask& t) {
  if (are_tokens_cached(t)) return 1;
  const int64_t panel_bytes = panel_numbers(t) * int64_t{sizeof(BFloat16)};
  const int64_t panels = ceil_div(t.part_rows, rows_per_panel(t));
  return std::max<int64_t>(std::min(kGroupBytes / panel_bytes, panels), 1);
}

// The two tiles of rows of the panel from row `first` of w on.
struct Panel {
  Panel(const LinearTask& t, int64_t first) {
    for (int half = 0; half < 2; ++half) {
      const Weights& w = half && t.up ? *t.up : *t.w;
      const int64_t row = first + (half && !t.up ? kTileRows : 0);
      tiles[half] = {&w, row, std::min<int64_t>(w.rows - row, kTileRows)};
    }
  }

  TileOfRows tiles[2];
};

// Computes a part by groups of panels. `scratch` has `bfloat16_scratch` floats.
template <typename Unpacker>
void multiply_groups(const LinearTask& t, const LinearRange& range, float* scratch) {
  BlockProduct block(t, scratch);
  auto* panels = reinterpret_cast<uint16_t*>(scratch + BlockProduct::kFloats);
  float* memory = reinterpret_cast<float*>(panels + panels_in_memory(t) * panel_numbers(t));
  const int64_t panel_rows = rows_per_panel(t), group_rows = panels_in_memory(t) * panel_rows;
  // With a single block of tokens, tiles stay in the first-level cache for their only product.
  const bool is_single = range.last_token - range.first_token <= kTokenTile;
  const int64_t steps = is_single ? Unpacker::steps_in_memory(steps_of(t)) : steps_of(t);
  for (int64_t first = range.first_row; first < range.last_row; first += group_rows) {
    const int64_t last = std::min(first + group_rows, range.last_row);
    for (int64_t m = range.first_token; m < range.last_token; m += kTokenTile) {
      const int64_t tokens = std::min<int64_t>(range.last_token - m, kTokenTile);
      for (int64_t n = first; n < last; n += panel_rows) {
        const PanelTiles panel(panels + (n - first) / panel_rows * panel_numbers(t), steps);
        if (m == range.first_token) {
          Unpacker unpacker(Panel(t, n).tiles, panel, memory, panel_rows);
          block.multiply(m, tokens, n, panel, unpacker);
        } else {
          NoWork none;
          block.multiply(m, tokens, n, panel, none);
        }
      }
    }
  }
  block.finish();
}

inline void multiply_bfloat16(const LinearTask& t, const LinearRange& range, float* scratch) {
  with_unpacker(*t.w, [&]<typename Unpacker>() { multiply_groups<Unpacker>(t, range, scratch); });
}

// Sets the size of the parts. A part has all tokens, so that each weight is unpacked once, unless w
// has too few panels for the threads. There are several parts for each thread, so that a thread
// that is preempted leaves the others to other threads.
inline void plan_bfloat16(LinearTask& t, int64_t threads) {
  constexpr int64_t kAmxPartsPerThread = 4;
  const int64_t panel_rows = rows_per_panel(t), panels = ceil_div(t.w->rows, panel_rows);
  t.part_rows = t.w->rows, t.part_tokens = t.rows;
  int64_t parts = kAmxPartsPerThread * threads, token_ranges = 1;
  if (!are_tokens_cached(t)) {
    // A part is a group of panels, which all tokens stream past. With too few groups for the
    // threads it is a range of tokens that are cached.
    const int64_t groups = ceil_div(panels, panels_in_memory(t));
    if (groups < threads) {
      token_ranges = ceil_div(token_bytes(t), kTokenBytes);
    } else {
      parts = groups;
    }
  }
  parts = ceil_div(ceil_div(parts, threads) * threads, token_ranges);
  const int64_t panels_of_part = std::max<int64_t>(ceil_div(panels, parts), 1);
  t.part_rows = panels_of_part * panel_rows;
  t.part_tokens =
      divided_tokens(t, std::max(threads, token_ranges * ceil_div(panels, panels_of_part)));
}

inline int64_t bfloat16_scratch(const LinearTask& t) {
  const int64_t panels = panels_in_memory(t) * panel_numbers(t) / 2;
  return BlockProduct::kFloats + panels + 2 * unpack_floats(*t.w);
}

}  // namespace tinyllm::TINYLLM_TIER
