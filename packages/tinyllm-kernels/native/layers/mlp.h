// The feed-forward half of a transformer block: y = x + down(silu(gate n) * (up n)), n = norm(x).
#pragma once

#include "dispatch/kernels.h"

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

// --- feed_forward.h
// The half of a block behind attention, of either kind, told once and used for every token.

// Rows of x and what they are.
struct Rows {
  const void* x;
  int64_t count;
  Phase phase;
  Type type;
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  virtual void run(const Kernels& kernels, const Rows& rows, void* y) const = 0;
};

}  // namespace tinyllm
