#include "attention_weight_inputs.h"

namespace tinyllm {

AttentionWeightInputs::AttentionWeightInputs(std::shared_ptr<AttentionWeights> block,
                                             const std::vector<mlx::core::array>& inputs,
                                             size_t at)
    : block_(std::move(block)), frequencies_(inputs[at++]) {
  for (bool present : block_->normed) norms_.emplace_back(present, inputs, at);
  const Weights* weights[] = {&block_->q, &block_->k, &block_->v, &block_->o};
  for (int i = 0; i < 4; ++i) {
    projections_.emplace_back(*weights[i], inputs, at);
    biases_.emplace_back(block_->biased[i], inputs, at);
  }
}

AttentionInputsTask AttentionWeightInputs::task(Copies& copies) const {
  AttentionInputsTask found{};
  Norm* of[] = {&found.norm, &found.q_norm, &found.k_norm};
  for (int i = 0; i < 3; ++i) *of[i] = {norms_[i].placed(copies), block_->eps[i]};
  found.q = projections_[0].placed(copies), found.q_bias = biases_[0].placed(copies);
  found.k = projections_[1].placed(copies), found.k_bias = biases_[1].placed(copies);
  found.v = projections_[2].placed(copies), found.v_bias = biases_[2].placed(copies);
  found.heads = block_->heads(), found.kv_heads = block_->kv_heads(), found.dim = block_->dim;
  found.frequencies = static_cast<const float*>(placed(frequencies_, copies));
  found.traditional = block_->traditional, found.magnitude = block_->magnitude;
  return found;
}

}  // namespace tinyllm
