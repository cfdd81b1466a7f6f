#include "block_weights.h"

namespace tinyllm {

MlpWeights::MlpWeights(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
                       const WeightArrays& down, bool residual)
    : residual_(residual) {
  task_.norm = {held_.hold(norm.weight), norm.eps};
  task_.gate = held_.hold(gate, norm.weight.value().shape(0));
  task_.up = held_.hold(up, task_.gate.columns);
  task_.down = held_.hold(down, task_.gate.rows);
}

MlpBlockTask MlpWeights::task(const void* x) const {
  MlpBlockTask found = task_;
  found.x = x;
  found.residual = residual_ ? x : nullptr;
  return found;
}

AttentionWeights::AttentionWeights(const NormArrays& norm, const ProjectionArrays& q,
                                   const ProjectionArrays& k, const ProjectionArrays& v,
                                   const ProjectionArrays& o, int head_dim,
                                   const RotaryArrays& rotary, const NormArrays& q_norm,
                                   const NormArrays& k_norm, bool residual)
    : residual_(residual) {
  const int width = o.weight.w.shape(-2);
  inputs_.norm = {held_.hold(norm.weight), norm.eps};
  inputs_.q_norm = {held_.hold(q_norm.weight), q_norm.eps};
  inputs_.k_norm = {held_.hold(k_norm.weight), k_norm.eps};
  inputs_.q = held_.hold(q.weight, width), inputs_.q_bias = held_.hold(q.bias);
  inputs_.k = held_.hold(k.weight, width), inputs_.k_bias = held_.hold(k.bias);
  inputs_.v = held_.hold(v.weight, width), inputs_.v_bias = held_.hold(v.bias);
  inputs_.heads = inputs_.q.rows / head_dim, inputs_.kv_heads = inputs_.k.rows / head_dim;
  inputs_.dim = head_dim;
  inputs_.frequencies = static_cast<const float*>(held_.hold(rotary.frequencies));
  inputs_.traditional = rotary.traditional, inputs_.magnitude = rotary.magnitude;
  o_ = held_.hold(o.weight, inputs_.q.rows), o_bias_ = held_.hold(o.bias);
}

}  // namespace tinyllm
