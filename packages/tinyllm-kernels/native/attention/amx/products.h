// Products of a row set on the matrix unit: scores, and weighted sums of values.
//
// Four tile registers have the sums of 32 rows by 32 keys or features. Two registers of each
// operand are loaded for four multiplications. Packed keys and values are loaded past the
// first-level cache, which the scores of two row sets fill. With `RowTiles` = 1 the set has 16 rows
// or less, and half of the registers are used.
#pragma once

#include "attention/amx/pack.h"
#include "attention/amx/softmax.h"

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_AMX)

// The products of one step of 32 features or keys: `rows` and `next_rows` are 16 rows of operand A
// each, `stride` bytes apart, and `panel` two tiles of operand B.
template <int RowTiles>
[[gnu::always_inline]] inline void multiply_tiles(TileRegisters& tiles, const uint16_t* rows,
                                                  const uint16_t* next_rows, int64_t stride,
                                                  const uint16_t* panel, BlockSoftmax& beside) {
  tiles.load<4>(rows, stride);
  tiles.load_streamed<6>(panel, 4 * W);
  tiles.multiply_add<0, 4, 6>(), beside.step();
  tiles.load_streamed<7>(panel + kTileNumbers, 4 * W);
  tiles.multiply_add<1, 4, 7>(), beside.step();
  if constexpr (RowTiles == 2) {
    tiles.load<5>(next_rows, stride);
    tiles.multiply_add<2, 5, 6>(), beside.step();
    tiles.multiply_add<3, 5, 7>(), beside.step();
  }
}

// Writes the scores of a row set, before scaling: q k^T. Between products it computes `softmax` of
// another set.
template <int RowTiles>
void multiply_keys(TileRegisters& tiles, const RowSet& set, const uint16_t* panels, int64_t count,
                   int64_t planes, int64_t width, BlockSoftmax& softmax) {
  BlockSoftmax beside = softmax;
  constexpr int64_t kRow = kScoreStride * sizeof(float);
  const int64_t q_row = width * sizeof(uint16_t);
  for (int64_t n = 0; n < count; ++n) {
    tiles.zero<0>(), tiles.zero<1>();
    if constexpr (RowTiles == 2) tiles.zero<2>(), tiles.zero<3>();
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t d = 0; d < width; d += kStepFeatures, panels += 2 * kTileNumbers) {
        const uint16_t* q = set.q + d;
        multiply_tiles<RowTiles>(tiles, q, q + W * width, q_row, panels, beside);
      }
    }
    float* to = set.scores + n * kPanelKeys;
    tiles.store<0>(to, kRow), tiles.store<1>(to + W, kRow);
    if constexpr (RowTiles == 2) {
      tiles.store<2>(to + W * kScoreStride, kRow), tiles.store<3>(to + W * kScoreStride + W, kRow);
    }
  }
  softmax = beside;
}

// Adds the weighted values of `count` panels to the sums of a row set. Between products it computes
// `softmax` of another set.
template <int RowTiles>
void multiply_values(TileRegisters& tiles, RowSet& set, const uint16_t* panels, int64_t count,
                     int64_t width, BlockSoftmax& softmax) {
  BlockSoftmax beside = softmax;
  constexpr int64_t kRow = kScoreStride * sizeof(float);
  const int64_t stride = value_stride(width), row = stride * sizeof(float);
  for (int64_t d = 0; d < width; d += kStepFeatures, panels += 2 * kTileNumbers) {
    float* sums = set.values + d;
    if (set.sums->is_empty) {
      tiles.zero<0>(), tiles.zero<1>();
      if constexpr (RowTiles == 2) tiles.zero<2>(), tiles.zero<3>();
    } else {
      tiles.load<0>(sums, row), tiles.load<1>(sums + W, row);
      if constexpr (RowTiles == 2) {
        tiles.load<2>(sums + W * stride, row), tiles.load<3>(sums + W * stride + W, row);
      }
    }
    const uint16_t* panel = panels;
    const auto* weights = reinterpret_cast<const uint16_t*>(set.scores);
    for (int64_t n = 0; n < count; ++n, panel += kPanelKeys * width, weights += kPanelKeys) {
      multiply_tiles<RowTiles>(tiles, weights, weights + 2 * W * kScoreStride, kRow, panel, beside);
    }
    tiles.store<0>(sums, row), tiles.store<1>(sums + W, row);
    if constexpr (RowTiles == 2) {
      tiles.store<2>(sums + W * stride, row), tiles.store<3>(sums + W * stride + W, row);
    }
  }
  set.sums->is_empty = false;
  softmax = beside;
}

#endif  // TINYLLM_AMX

}  // namespace tinyllm::TINYLLM_ISA
