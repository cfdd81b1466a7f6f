// The feed-forward half of a transformer block: y = x + down(silu(gate n) * (up n)), n = norm(x).
#pragma once

#include "kernels.h"

namespace tinyllm {

struct Norm {
  const void* weight;  // null where nothing is normalized
  float eps;
};

struct MlpBlockTask {
  const void* x;         // rows E
  const void* residual;  // x, or null where it is not added
  int64_t rows;
  Phase phase;
  Norm norm;
  Weights gate, up, down;
  void* y;  // rows E
  Type type;
};

void run(const Kernels& kernels, const MlpBlockTask& task);

}  // namespace tinyllm
