#include "mlx/handles.h"

#include <stdexcept>
#include <string>

#include <mlx/ops.h>

#include "mlx/weight_inputs.h"

namespace tinyllm {

namespace mx = mlx::core;

const void* HeldArrays::hold(const std::optional<mx::array>& array) {
  if (!array) return nullptr;
  mx::array held = *array;
  held.eval();
  if (!held.flags().row_contiguous) {
    held = mx::contiguous(held);
    held.eval();
  }
  arrays_.push_back(held);
  return held.data<void>();
}

Weights HeldArrays::hold(const WeightArrays& w, int columns) {
  Weights found = describe(w, columns);
  found.data = hold(w.w), found.scales = hold(w.scales), found.biases = hold(w.biases);
  return found;
}

namespace {

// Gives a task of either kind its rows.
template <typename Task>
Task with_rows(Task task, const Rows& rows, bool residual, void* y) {
  task.x = rows.x, task.residual = residual ? rows.x : nullptr;
  task.rows = rows.count, task.phase = rows.phase, task.type = rows.type;
  task.y = y;
  return task;
}

int64_t bytes_of_one(const std::optional<mlx::core::array>& stack) {
  return stack ? static_cast<int64_t>(stack->nbytes()) / stack->shape(0) : 0;
}

}  // namespace

MlpWeights::MlpWeights(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
                       const WeightArrays& down, bool residual)
    : residual_(residual) {
  task_.norm = {held_.hold(norm.weight), norm.eps};
  task_.gate = held_.hold(gate, norm.weight.value().shape(0));
  task_.up = held_.hold(up, task_.gate.columns);
  task_.down = held_.hold(down, task_.gate.rows);
}

void MlpWeights::run(const Kernels& kernels, const Rows& rows, void* y) const {
  tinyllm::run(kernels, with_rows(task_, rows, residual_, y));
}

MoeWeights::MoeWeights(const NormArrays& norm, const WeightArrays& router, const WeightArrays& gate,
                       const WeightArrays& up, const WeightArrays& down, int chosen,
                       bool shares_add_to_1, bool residual)
    : residual_(residual) {
  const int width = down.w.shape(-2), hidden = gate.w.shape(-2);
  if (chosen < 1 || chosen > router.w.shape(-2) || router.w.shape(-2) > gate.w.shape(0)) {
    throw std::invalid_argument("chosen: expected from 1 to as many experts as there are, got " +
                                std::to_string(chosen));
  }
  task_.norm = {held_.hold(norm.weight), norm.eps};
  task_.router = held_.hold(router, width);
  task_.gate = hold(gate, width), task_.up = hold(up, width), task_.down = hold(down, hidden);
  task_.chosen = chosen, task_.shares_add_to_1 = shares_add_to_1;
}

void MoeWeights::run(const Kernels& kernels, const Rows& rows, void* y) const {
  tinyllm::run(kernels, with_rows(task_, rows, residual_, y));
}

Experts MoeWeights::hold(const WeightArrays& w, int columns) {
  return {held_.hold(w, columns), bytes_of_one(w.w), bytes_of_one(w.scales),
          bytes_of_one(w.biases)};
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
