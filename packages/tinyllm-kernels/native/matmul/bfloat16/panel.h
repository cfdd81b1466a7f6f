// Panels of w in bfloat16, for kernels that multiply vectors of bfloat16: see
// matmul/bfloat16/gemm.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "matmul/bfloat16/round.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_BFLOAT16)

inline constexpr int kPanelRows = 48;  // rows of w that are unpacked together, at most

// Unused numbers after each row of a panel. Without them rows of 2 KB would share a cache set.
inline constexpr int kRowPadding = 32;

// Numbers of a row that one instruction multiplies and adds up.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline constexpr int kDotLength = 4;
#else
inline constexpr int kDotLength = 2;
#endif

// Rows of a panel that stay in the first-level cache.
inline constexpr int kSmallPanelRows = kDotLength == 4 ? 16 : 12;

// Pairs of numbers in a row, rounded up to whole dot products.
inline int64_t row_pairs(int columns) {
  return (columns + kDotLength - 1) / kDotLength * (kDotLength / 2);
}

// Numbers from a row of an unpacked panel to the next.
inline int64_t panel_stride(int columns) { return 2 * row_pairs(columns) + kRowPadding; }

// Floats of memory that `unpack_panel` needs: the panel, and one row as floats.
inline int64_t panel_floats(int columns) {
  return kPanelRows * panel_stride(columns) / 2 + columns + W;
}

// Rows of bfloat16 numbers, `stride` numbers from one to the next.
struct BFloat16Rows {
  const uint16_t* rows;
  int64_t stride;
};

// Writes row n of w to `to`. `row` is scratch memory of w.columns + W floats.
template <typename Format>
void round_row(const Weights& w, int64_t n, uint16_t* to, float* row) {
  decode_row<Format>(w, n, 0, w.columns, row);
  std::fill_n(row + w.columns, W, 0.0f);  // completes the last dot product
  for (int k = 0; k < w.columns; k += W) {
    const Shorts numbers = round_to_bfloat16(load(row + k));
    std::memcpy(to + k, &numbers, sizeof numbers);
  }
}

#if defined(__AVX512BF16__)
// True if a group of at least 32 columns has 16 numbers at most.
template <typename Format>
inline constexpr bool kHasTables = std::is_same_v<Format, Quantized<Mode::affine, 4>> ||
                                   std::is_same_v<Format, Quantized<Mode::mxfp4, 4>>;

// Writes row n of w, whose codes have 4 bits, to `to`.
template <typename Format>
inline void look_up_row(const Weights& w, int64_t n, uint16_t* to) {
  constexpr uint64_t kAllCodes = 0xfedcba9876543210;
  const Floats codes = Format::raw(reinterpret_cast<const uint8_t*>(&kAllCodes), 0);
  const uint8_t* row = Format::row(w, n);
  for (int k = 0; k < w.columns; k += w.group) {
    const __m512i table = bfloat16_table(codes, Format::affine(w, (n * w.columns + k) / w.group));
    for (int i = k; i < k + w.group; i += 32) {
      _mm512_storeu_si512(to + i, look_up(row + i / 2, table));
    }
  }
}
#endif

// Returns `rows` rows of w from `first` on in bfloat16. Dense rows are returned in place if they
// are whole dot products. Other rows are unpacked to `memory`.
template <typename Format>
BFloat16Rows unpack_panel(const Weights& w, int64_t first, int64_t rows, float* memory) {
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
    for (int64_t i = 0; i < int64_t{w.columns} * w.bits / 8; i += 64) {
      __builtin_prefetch(next + i, 0, 2);  // to the second-level cache
    }
#if defined(__AVX512BF16__)
    if constexpr (kHasTables<Format>) {
      look_up_row<Format>(w, first + n, panel + n * stride);
      continue;
    }
#endif
    round_row<Format>(w, first + n, panel + n * stride, row);
  }
  return {panel, stride};
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
