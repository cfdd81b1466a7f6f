// Prefill in bfloat16 with the AMX matrix unit.
//
// x is operand A, 16 tokens by 32 columns, as it lies in memory. w is operand B: see
// matmul/bfloat16/amx_weight_tiles.h. A micro-tile is 32 tokens by a panel of 32 rows of w. Its
// sums stay in four tile registers over all columns, and are then rounded once.
//
// A part has as many tokens as the second-level cache keeps. They are multiplied by one panel after
// the other, which is packed between the products of the first tile of tokens.
#pragma once

#include <algorithm>

#include "ceil_div.h"
#include "matmul/bfloat16/amx_micro_kernel.h"
#include "matmul/bfloat16/amx_packers.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kPanelRows = 2 * kTileRows;

// Bytes of x in a part, about. They stay in a second-level cache of 2 MB beside a panel, its codes
// and results. Dense weights take longer to read again for the next part.
inline int64_t part_x_bytes(const Weights& w) { return (w.mode == Mode::dense ? 1100 : 800) << 10; }

// Rows of w in a panel. A panel of a gated product has as many rows of `up`.
inline int64_t rows_per_panel(const LinearTask& t) { return t.up ? kTileRows : kPanelRows; }

inline int64_t panel_numbers(const LinearTask& t) { return steps_of(t) * kStepNumbers; }

// The two tiles of rows of the panel from row `first` of w on.
struct Panel {
  Panel(const LinearTask& t, int64_t first) {
    for (int i = 0; i < 2; ++i) {
      const Weights& w = i && t.up ? *t.up : *t.w;
      const int64_t row = first + (i && !t.up ? kTileRows : 0);
      tiles[i] = {&w, row, std::min<int64_t>(w.rows - row, kTileRows)};
    }
  }

  TileOfRows tiles[2];
};

// Computes a part. `scratch` has `bfloat16_scratch` floats.
template <typename Packer>
void multiply_panels(const LinearTask& t, const LinearRange& range, float* scratch) {
  AmxMicroKernel kernel(t, scratch);
  auto* packed = reinterpret_cast<uint16_t*>(scratch + AmxMicroKernel::kFloats);
  float* memory = reinterpret_cast<float*>(packed + panel_numbers(t));
  const int64_t panel_rows = rows_per_panel(t);
  // With a single tile of tokens, tiles stay in the first-level cache for their only product.
  const bool is_single = range.last_token - range.first_token <= kTokenTile;
  const PanelTiles panel(packed, is_single ? steps_in_memory(steps_of(t)) : steps_of(t));
  for (int64_t n = range.first_row; n < range.last_row; n += panel_rows) {
    Packer packer(Panel(t, n).tiles, panel, memory, panel_rows);
    const auto multiply = [&](int64_t m, auto& beside) {
      kernel.multiply(m, std::min<int64_t>(range.last_token - m, kTokenTile), n, panel, beside);
    };
    multiply(range.first_token, packer);
    for (int64_t m = range.first_token + kTokenTile; m < range.last_token; m += kTokenTile) {
      NoWork none;
      multiply(m, none);
    }
  }
  kernel.finish();
}

inline void bfloat16_gemm(const LinearTask& t, const LinearRange& range, float* scratch) {
  with_packer(*t.w, [&]<typename Packer>() { multiply_panels<Packer>(t, range, scratch); });
}

// Sets the size of the parts. There are several for each thread, so that threads which compute at
// different speeds wait little for each other. Each part begins by filling a pipeline, which takes
// longest beside a single tile of tokens.
inline void plan_bfloat16(LinearTask& t, int64_t parts) {
  const int64_t threads = ceil_div(parts, kPartsPerThread);
  if (t.tokens <= kTokenTile) parts = ceil_div(parts, 4);
  const int64_t bytes = t.tokens * steps_of(t) * kStepColumns * int64_t{sizeof(BFloat16)};
  const int64_t kept = part_x_bytes(*t.w);
  const int64_t token_ranges = std::max<int64_t>((bytes + kept / 2) / kept, 1);
  const int64_t panels = ceil_div(t.w->rows, rows_per_panel(t));
  const int64_t panels_of_part = ceil_div(panels, ceil_div(parts, token_ranges));
  t.part_rows = panels_of_part * rows_per_panel(t);
  const int64_t row_ranges = ceil_div(panels, panels_of_part);
  t.part_tokens = divided_tokens(t, std::max(threads, token_ranges * row_ranges));
}

inline int64_t bfloat16_scratch(const LinearTask& t) {
  return AmxMicroKernel::kFloats + panel_numbers(t) / 2 + 2 * packing_floats(*t.w);
}

}  // namespace tinyllm::TINYLLM_ISA
