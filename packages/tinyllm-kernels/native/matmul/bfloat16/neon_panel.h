// Panels of w in bfloat16 for NEON: see matmul/bfloat16/neon_gemm.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ceil_div.h"
#include "matmul/bfloat16/round.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kPanelRows = 48;  // rows of w that are packed together, at most

// Unused numbers after each row of a panel. Without them rows of 2 KB would share a cache set.
inline constexpr int kRowPadding = 32;

// Numbers of a row that one instruction multiplies and adds up.
inline constexpr int kDotLength = 4;

// Rows of a panel that stay in the first-level cache.
inline constexpr int kSmallPanelRows = 16;

// Pairs of numbers in a row, rounded up to whole dot products.
inline int64_t row_pairs(int columns) { return ceil_div(columns, kDotLength) * (kDotLength / 2); }

// Numbers from a row of a packed panel to the next.
inline int64_t panel_stride(int columns) { return 2 * row_pairs(columns) + kRowPadding; }

// Floats of memory that `pack_panel` needs: the panel, and one row as floats.
inline int64_t panel_floats(int columns) {
  return kPanelRows * panel_stride(columns) / 2 + columns + W;
}

// Rows of bfloat16 numbers, `stride` numbers from one to the next.
struct BFloat16Rows {
  const uint16_t* rows;
  int64_t stride;
};

// Returns `rows` rows of w from `first` on in bfloat16. Dense rows are returned in place if they
// are whole dot products. Other rows are dequantized to `memory`.
template <typename Format>
BFloat16Rows pack_panel_of(const Weights& w, int64_t first, int64_t rows, float* memory) {
  if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
    if (w.columns % kDotLength == 0) {
      return {static_cast<const uint16_t*>(w.data) + first * w.columns, w.columns};
    }
  }
  const int64_t stride = panel_stride(w.columns);
  uint16_t* panel = reinterpret_cast<uint16_t*>(memory);
  float* row = memory + kPanelRows * stride / 2;
  for (int64_t n = 0; n < rows; ++n) {
    // Memory would be idle while this panel is multiplied, so the next panel is prefetched now.
    const auto* next = reinterpret_cast<const char*>(Format::row(w, first + rows + n));
    for (int64_t i = 0; i < row_bytes(w); i += 64) {
      __builtin_prefetch(next + i, 0, 2);  // to the second-level cache
    }
    round_row<Format>(w, first + n, panel + n * stride, row);
  }
  return {panel, stride};
}

inline BFloat16Rows pack_panel(const Weights& w, int64_t first, int64_t rows, float* memory) {
  BFloat16Rows panel;
  with_format(w, [&]<typename Format>() { panel = pack_panel_of<Format>(w, first, rows, memory); });
  return panel;
}

}  // namespace tinyllm::TINYLLM_ISA
