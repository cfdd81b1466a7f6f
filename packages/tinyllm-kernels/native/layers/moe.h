// The feed-forward half of a block that is a mixture of experts: y = x + sum over the chosen experts
// of share * down(silu(gate n) * (up n)), n = norm(x).
#pragma once

#include "layers/mlp.h"

namespace tinyllm {

// One matrix for each expert.
struct Experts {
  Weights first;
  int64_t data_bytes, scale_bytes, bias_bytes;  // from one to the next

  Weights operator[](int64_t expert) const;
};

struct MoeBlockTask {
  const void* x;         // rows E
  const void* residual;  // x, or null where it is not added
  int64_t rows;
  Phase phase;
  Norm norm;
  Weights router;  // X E
  Experts gate, up, down;
  int64_t chosen;         // K
  bool shares_add_to_1;  // those of the chosen ones
  void* y;               // rows E
  Type type;
};

void run(const Kernels& kernels, const MoeBlockTask& task);

}  // namespace tinyllm
