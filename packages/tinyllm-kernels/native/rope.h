// Rotary positions: each pair of features turns by position * frequency.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct RopeTask {
  const void* x;             // B L H D, rows of D at any distance
  int64_t strides[3];        // of B, L and H, in numbers
  void* y;                   // B L H D, too; it may be x
  int64_t y_strides[3];
  const int32_t* positions;  // 1 L or B L
  const float* frequencies;  // D/2, in radians a token
  int64_t length, heads, dim;
  bool one_row;      // the positions are those of every row
  bool traditional;  // pairs are neighbors, otherwise i and i + D/2
  float magnitude;   // multiplies what is turned
  Type type;
};

}  // namespace tinyllm
