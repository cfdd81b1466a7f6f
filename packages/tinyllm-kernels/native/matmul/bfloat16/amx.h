// Prefill in bfloat16 with the AMX matrix unit.
//
// x is operand A, 16 tokens by 32 columns, as it lies in memory. w is operand B: see
// matmul/bfloat16/weight_tiles.h. A block is 32 tokens by a panel of 32 rows of w. Its sums stay in
// four tile registers over all columns, and are then rounded once.
//
// Each weight is unpacked once for all tokens of a part: right before its product if there is one
// block of tokens. If all tokens fit into the second-level cache, panels follow each other. With
// few tokens the next panel is unpacked while all tokens are multiplied by the present one. If
// tokens do not fit, a group of panels is unpacked to that cache, and tokens stream past it, or, if
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

// Tokens up to which the next panel is unpacked between the products of the present one. The loop of
// products is faster without other work in it. So with more tokens a panel is unpacked before them.
inline constexpr int64_t kTokensInTurn = 192;

// Rows of w in a panel. A panel of a gated product has as many rows of `up`.
inline int64_t rows_per_panel(const LinearTask& t) { return t.up ? kTileRows : kPanelRows; }

inline int64_t panel_numbers(const LinearTask& t) { return steps_of(t) * kStepNumbers; }

// Bytes of x in a part.
inline int64_t token_bytes(const LinearTask& t) {
  return t.part_tokens * steps_of(t) * kStepColumns * int64_t{sizeof(BFloat16)};
}

inline bool are_tokens_cached(const LinearTask& t) { return token_bytes(t) <= kTokenBytes; }

inline bool unpacks_in_turn(const LinearTask& t) {
  return are_tokens_cached(t) && t.part_tokens <= kTokensInTurn;
}

// Panels that memory is needed for: one that is multiplied and one that is unpacked, or a group.
inline int64_t panels_in_memory(const LinearTask& t) {
  if (are_tokens_cached(t)) return unpacks_in_turn(t) ? 2 : 1;
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

// Multiplies a part of one block of tokens. Each tile of w is unpacked right before its only
// product.
template <typename Unpacker>
void multiply_steps(const LinearTask& t, const LinearRange& range, BlockProduct& block,
                    uint16_t* panel, float* memory) {
  const int64_t panel_rows = rows_per_panel(t), tokens = range.last_token - range.first_token;
  for (int64_t n = range.first_row; n < range.last_row; n += panel_rows) {
    Unpacker unpacker(Panel(t, n).tiles, panel, memory, panel_rows);
    block.multiply(range.first_token, tokens, n, PanelTiles(panel, kStepsInMemory), unpacker);
  }
}

// Multiplies a part of few tokens. The next panel is unpacked between the products of the present
// one.
template <typename Unpacker>
void multiply_panels(const LinearTask& t, const LinearRange& range, BlockProduct& block,
                     uint16_t* panels, float* memory) {
  uint16_t *panel = panels, *next_panel = panels + panel_numbers(t);
  const int64_t calls = block.calls() * ceil_div(range.last_token - range.first_token, kTokenTile);
  Unpacker unpacker;
  unpacker.begin(Panel(t, range.first_row).tiles, panel, memory, 0);
  for (int64_t n = range.first_row; n < range.last_row; n += rows_per_panel(t)) {
    unpacker.finish();
    const int64_t next = n + rows_per_panel(t);
    if (next < range.last_row) unpacker.begin(Panel(t, next).tiles, next_panel, memory, calls);
    for (int64_t m = range.first_token; m < range.last_token; m += kTokenTile) {
      const int64_t tokens = std::min<int64_t>(range.last_token - m, kTokenTile);
      block.multiply(m, tokens, n, PanelTiles(panel, steps_of(t)), unpacker);
    }
    std::swap(panel, next_panel);
  }
}

// Multiplies a part by groups of panels: by single panels if its tokens are cached.
template <typename Unpacker>
void multiply_groups(const LinearTask& t, const LinearRange& range, BlockProduct& block,
                     uint16_t* panels, float* memory) {
  const int64_t panel_rows = rows_per_panel(t), group_rows = panels_in_memory(t) * panel_rows;
  Unpacker unpacker;
  NoWork none;
  for (int64_t first = range.first_row; first < range.last_row; first += group_rows) {
    const int64_t last = std::min(first + group_rows, range.last_row);
    const auto panel_of = [&](int64_t n) {
      return panels + (n - first) / panel_rows * panel_numbers(t);
    };
    for (int64_t n = first; n < last; n += panel_rows) {
      unpacker.begin(Panel(t, n).tiles, panel_of(n), memory, 0);
      unpacker.finish();
    }
    for (int64_t m = range.first_token; m < range.last_token; m += kTokenTile) {
      const int64_t tokens = std::min<int64_t>(range.last_token - m, kTokenTile);
      for (int64_t n = first; n < last; n += panel_rows) {
        block.multiply(m, tokens, n, PanelTiles(panel_of(n), steps_of(t)), none);
      }
    }
  }
}

// Computes a part. `scratch` has `bfloat16_scratch` floats.
inline void multiply_bfloat16(const LinearTask& t, const LinearRange& range, float* scratch) {
  BlockProduct block(t, scratch);
  auto* panels = reinterpret_cast<uint16_t*>(scratch + BlockProduct::kFloats);
  float* memory = reinterpret_cast<float*>(panels + panels_in_memory(t) * panel_numbers(t));
  if (supports_integers(*t.w) && range.last_token - range.first_token <= kTokenTile) {
    with_codes(*t.w, [&]<Codes C, typename T>() {
      multiply_steps<StepUnpacker<C, T>>(t, range, block, panels, memory);
    });
    return block.finish();
  }
  with_unpacker(*t.w, [&]<typename Unpacker>() {
    const auto multiply =
        unpacks_in_turn(t) ? multiply_panels<Unpacker> : multiply_groups<Unpacker>;
    multiply(t, range, block, panels, memory);
  });
  block.finish();
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
