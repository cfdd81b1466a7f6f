// The weights of an attention block among the inputs of a primitive.
#pragma once

#include "attention_block.h"
#include "weight_inputs.h"

namespace tinyllm {

// The inputs from `at` on, in the order in which `AttentionWeights` has them.
class AttentionWeightInputs {
 public:
  AttentionWeightInputs(std::shared_ptr<AttentionWeights> block,
                        const std::vector<mlx::core::array>& inputs, size_t at);

  // All of a task but x, the positions, and where the results go.
  AttentionInputsTask task(Copies& copies) const;

  Weights o(Copies& copies) const { return projections_[3].placed(copies); }
  const void* o_bias(Copies& copies) const { return biases_[3].placed(copies); }
  const void* residual(const void* x) const { return block_->residual ? x : nullptr; }

 private:
  std::shared_ptr<AttentionWeights> block_;
  Input frequencies_;
  std::vector<OptionalInput> norms_, biases_;
  std::vector<WeightInput> projections_;
};

}  // namespace tinyllm
