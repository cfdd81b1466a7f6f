// Products of a row set on the matrix unit: scores, and weighted sums of values.
//
// Four tile registers have the sums of 32 rows by 32 keys or features. Two registers of each operand
// are loaded for four multiplications. Packed keys and values are loaded past the first-level cache,
// which the scores of two row sets fill. With `Halves` = 1 the set has 16 rows or less, and half of
// the registers are used.
#pragma once

#include "attention/tiles/pack.h"
#include "attention/tiles/softmax.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_TILES)

// Writes the scores of a row set, before scaling: q k^T. Calls `beside()` at each step.
template <int Halves, typename Beside>
void multiply_keys(TileRegisters& tiles, const RowSet& set, const uint16_t* panels, int64_t count,
                   int64_t planes, int64_t width, Beside beside) {
  constexpr int64_t kRow = kScoreStride * sizeof(float);
  const int64_t q_row = width * sizeof(uint16_t);
  for (int64_t n = 0; n < count; ++n) {
    tiles.zero<0>(), tiles.zero<1>();
    if constexpr (Halves == 2) tiles.zero<2>(), tiles.zero<3>();
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t d = 0; d < width; d += kStepFeatures, panels += 2 * kTileNumbers) {
        tiles.load<4>(set.q + d, q_row);
        tiles.load_streamed<6>(panels, 4 * W);
        tiles.load_streamed<7>(panels + kTileNumbers, 4 * W);
        if constexpr (Halves == 2) tiles.load<5>(set.q + W * width + d, q_row);
        tiles.multiply_add<0, 4, 6>(), tiles.multiply_add<1, 4, 7>();
        if constexpr (Halves == 2) {
          tiles.multiply_add<2, 5, 6>(), tiles.multiply_add<3, 5, 7>();
        }
        beside();
      }
    }
    float* to = set.scores + n * kPanelKeys;
    tiles.store<0>(to, kRow), tiles.store<1>(to + W, kRow);
    if constexpr (Halves == 2) {
      tiles.store<2>(to + W * kScoreStride, kRow), tiles.store<3>(to + W * kScoreStride + W, kRow);
    }
  }
}

// Adds the weighted values of `count` panels to the sums of a row set. Calls `beside()` at each
// step.
template <int Halves, typename Beside>
void multiply_values(TileRegisters& tiles, RowSet& set, const uint16_t* panels, int64_t count,
                     int64_t width, Beside beside) {
  constexpr int64_t kRow = kScoreStride * sizeof(float);
  const int64_t stride = width + W, row = stride * sizeof(float);
  for (int64_t d = 0; d < width; d += kStepFeatures, panels += 2 * kTileNumbers) {
    float* sums = set.values + d;
    if (set.sums->is_empty) {
      tiles.zero<0>(), tiles.zero<1>();
      if constexpr (Halves == 2) tiles.zero<2>(), tiles.zero<3>();
    } else {
      tiles.load<0>(sums, row), tiles.load<1>(sums + W, row);
      if constexpr (Halves == 2) {
        tiles.load<2>(sums + W * stride, row), tiles.load<3>(sums + W * stride + W, row);
      }
    }
    const uint16_t* panel = panels;
    const auto* weights = reinterpret_cast<const uint16_t*>(set.scores);
    for (int64_t n = 0; n < count; ++n, panel += kPanelKeys * width, weights += kPanelKeys) {
      tiles.load<4>(weights, kRow);
      tiles.load_streamed<6>(panel, 4 * W);
      tiles.load_streamed<7>(panel + kTileNumbers, 4 * W);
      if constexpr (Halves == 2) tiles.load<5>(weights + 2 * W * kScoreStride, kRow);
      tiles.multiply_add<0, 4, 6>(), tiles.multiply_add<1, 4, 7>();
      if constexpr (Halves == 2) {
        tiles.multiply_add<2, 5, 6>(), tiles.multiply_add<3, 5, 7>();
      }
      beside();
    }
    tiles.store<0>(sums, row), tiles.store<1>(sums + W, row);
    if constexpr (Halves == 2) {
      tiles.store<2>(sums + W * stride, row), tiles.store<3>(sums + W * stride + W, row);
    }
  }
  set.sums->is_empty = false;
}

#endif  // TINYLLM_TILES

}  // namespace tinyllm::TINYLLM_TIER
