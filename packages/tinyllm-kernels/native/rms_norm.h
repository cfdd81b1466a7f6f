// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct RmsNormTask {
  const void* x;       // rows D
  const void* weight;  // D
  void* y;             // rows D
  int64_t width;       // D
  float eps;
  Type type;  // of all three
};

}  // namespace tinyllm
