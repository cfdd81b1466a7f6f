// y[n] = residual[n] + sum over k of share[n, k] * row[place[n, k]]: what experts say, put together.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct WeightedSumTask {
  const void* rows;       // of `width` numbers
  const int64_t* places;  // N K, which of the rows
  const float* shares;    // N K
  int64_t count, width;   // K
  const void* residual;   // N width, or null
  void* y;                // N width
  Type type;              // of rows, residual and y
};

}  // namespace tinyllm
