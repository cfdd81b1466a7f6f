// The feed-forward half of a decoder layer.
#pragma once

#include "dispatch/kernel_table.h"
#include "runtime/aligned.h"

namespace tinyllm {

// RMSNorm with its weight.
struct Norm {
  const void* weight;
  float eps;
};

// Returns the normalized rows of x `rows width`, `stride` numbers from one to the next. Runs on all
// threads.
Aligned<char> normalize(const KernelTable& kernels, const Norm& norm, const void* x, int64_t rows,
                        int width, Type type, int64_t stride);

// Rows of x `count E`.
struct Rows {
  const void* x;
  int64_t count;
  Phase phase;
  Type type;
};

// y = residual + down(silu(gate n) * (up n)), n = norm(x).
struct MlpTask {
  const void* x;         // rows E
  const void* residual;  // rows E, or null
  int64_t rows;
  Phase phase;
  Norm norm;
  Weights gate, up, down;
  void* y;  // rows E
  Type type;
};

void run_mlp(const KernelTable& kernels, const MlpTask& task);

// The feed-forward half of a layer with its weights: an MLP or a mixture of experts.
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // Writes the result for all rows to y `count E`.
  virtual void run(const KernelTable& kernels, const Rows& rows, void* y) const = 0;
};

}  // namespace tinyllm
