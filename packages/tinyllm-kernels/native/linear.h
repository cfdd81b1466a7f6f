// y = x w^T + bias: the matrix product that a projection is.
//
// Two ways to the same sums. For a few rows of x (a token or two) every code is multiplied as it is
// unpacked: memory is what limits, and each weight is used once. For many rows a panel of w is
// unpacked once, and multiplied with blocks of rows that stay in the second-level cache.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

// Rows of x that are multiplied while w is unpacked, at most.
inline constexpr int kFewRows = 3;

struct LinearTask {
  const float* x;     // M K
  const float* sums;  // M K/group, of x over each group of w; used for a few rows alone
  int64_t rows;       // M
  const Weights* w;   // N K
  const void* bias;   // N of `type`, or null
  void* y;            // M N of `type`
  Type type;
};

}  // namespace tinyllm
