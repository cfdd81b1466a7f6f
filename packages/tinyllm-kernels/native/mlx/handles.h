// Arrays that a block of layers was told of once and computes with for every token: computed, without
// gaps, and where they are for as long as the block is. As inputs of each primitive they would be
// looked at anew for every token, and there are twenty of them to a block.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "mlx/weight_inputs.h"
#include "types.h"

namespace tinyllm {

class HeldArrays {
 public:
  // The numbers of an array that may be missing.
  const void* hold(const std::optional<mlx::core::array>& array);

  // A weight of so many columns.
  Weights hold(const WeightArrays& w, int columns);

 private:
  std::vector<mlx::core::array> arrays_;
};

// --- block_weights.h
// The halves of a transformer block, told once and used for every token.

struct NormArrays {
  std::optional<mlx::core::array> weight;  // or nothing is normalized
  float eps;
};

struct ProjectionArrays {
  WeightArrays weight;
  std::optional<mlx::core::array> bias;
};

// What RoPE turns by: frequencies `D/2` of float32, in radians a token.
struct RotaryArrays {
  mlx::core::array frequencies;
  bool traditional;
  float magnitude;
};

// tinyllm_ops.MlpBlock.
class MlpWeights : public FeedForward {
 public:
  MlpWeights(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
             const WeightArrays& down, bool residual);

  void run(const Kernels& kernels, const Rows& rows, void* y) const override;

 private:
  HeldArrays held_;
  MlpBlockTask task_{};
  bool residual_;  // whether x is added
};

// tinyllm_ops.MoeBlock.
class MoeWeights : public FeedForward {
 public:
  MoeWeights(const NormArrays& norm, const WeightArrays& router, const WeightArrays& gate,
             const WeightArrays& up, const WeightArrays& down, int chosen, bool shares_add_to_1,
             bool residual);

  void run(const Kernels& kernels, const Rows& rows, void* y) const override;

 private:
  Experts hold(const WeightArrays& w, int columns);

  HeldArrays held_;
  MoeBlockTask task_{};
  bool residual_;  // whether x is added
};

// tinyllm_ops.AttentionBlock.
class AttentionWeights {
 public:
  AttentionWeights(const NormArrays& norm, const ProjectionArrays& q, const ProjectionArrays& k,
                   const ProjectionArrays& v, const ProjectionArrays& o, int head_dim,
                   const RotaryArrays& rotary, const NormArrays& q_norm, const NormArrays& k_norm,
                   bool residual);

  // Queries, keys and values of x, but where they stand and where they go.
  const AttentionInputsTask& inputs() const { return inputs_; }

  // Whether x is added to what leaves the block.
  bool residual() const { return residual_; }

  const Weights& o() const { return o_; }
  const void* o_bias() const { return o_bias_; }

 private:
  HeldArrays held_;
  AttentionInputsTask inputs_{};
  Weights o_;
  const void* o_bias_;
  bool residual_;
};

// tinyllm_ops.Block, or its first half alone.
struct BlockWeights {
  std::shared_ptr<AttentionWeights> attention;
  std::shared_ptr<FeedForward> second;  // or null
};

}  // namespace tinyllm
