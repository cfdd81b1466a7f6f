// The feed-forward half of a decoder layer that is a mixture of experts.
#pragma once

#include <optional>

#include "layers/mlp.h"

namespace tinyllm {

// A stack of equally shaped matrices, one for each expert.
struct Experts {
  Weights first;
  int64_t data_bytes, scale_bytes, bias_bytes;  // from one expert to the next

  Weights operator[](int64_t expert) const;
};

// The MLP that computes every token. Its result is scaled by sigmoid(shared_gate n).
struct SharedExpert {
  Weights gate, up, down;
  Weights shared_gate;  // 1 E
};

// y = x + sum over the chosen experts of routing_weight * down(silu(gate n) * (up n)), n = norm(x).
// A shared expert is one more term of the sum.
struct MoeTask {
  const void* x;  // rows E
  int64_t rows;
  Phase phase;
  Norm norm;
  Weights router;  // X E, for X experts
  Experts gate, up, down;
  int64_t experts_per_token;        // K
  bool normalizes_routing_weights;  // scale the K weights of a token so that they add up to 1
  std::optional<SharedExpert> shared;
  void* y;                          // rows E
  Type type;

  // The terms of the sum of a token: its experts, and the shared expert as the last.
  int64_t terms() const { return experts_per_token + (shared ? 1 : 0); }
};

void run_moe(const KernelTable& kernels, const MoeTask& task);

}  // namespace tinyllm
