#include "mlx/handles.h"

#include <mlx/ops.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace tinyllm {

namespace mx = mlx::core;

const void* EvaluatedArrays::keep(const std::optional<mx::array>& array) {
  if (!array) return nullptr;
  mx::array evaluated = *array;
  evaluated.eval();
  if (!evaluated.flags().row_contiguous) {
    evaluated = mx::contiguous(evaluated);
    evaluated.eval();
  }
  arrays_.push_back(evaluated);
  return evaluated.data<void>();
}

Weights EvaluatedArrays::keep(const WeightArrays& arrays, int columns) {
  Weights w = describe(arrays, columns);
  w.data = keep(arrays.w);
  w.scales = keep(arrays.scales);
  w.biases = keep(arrays.biases);
  return w;
}

Norm EvaluatedArrays::keep(const std::optional<NormArrays>& norm) {
  return norm ? Norm{keep(norm->weight), norm->eps} : Norm{};
}

namespace {

// Returns a copy of an MlpTask or MoeTask with its rows set.
template <typename Task>
Task with_rows(Task task, const Rows& rows, void* y) {
  task.x = rows.x;
  task.rows = rows.count;
  task.phase = rows.phase;
  task.type = rows.type;
  task.y = y;
  return task;
}

int64_t bytes_per_matrix(const std::optional<mx::array>& stack) {
  return stack ? static_cast<int64_t>(stack->nbytes()) / stack->shape(0) : 0;
}

}  // namespace

MlpHandle::MlpHandle(const NormArrays& norm, const WeightArrays& gate, const WeightArrays& up,
                     const WeightArrays& down, bool adds_residual)
    : adds_residual_(adds_residual) {
  task_.norm = arrays_.keep(norm);
  task_.gate = arrays_.keep(gate, norm.weight.shape(0));
  task_.up = arrays_.keep(up, task_.gate.columns);
  task_.down = arrays_.keep(down, task_.gate.rows);
}

void MlpHandle::run(const KernelTable& kernels, const Rows& rows, void* y) const {
  MlpTask task = with_rows(task_, rows, y);
  task.residual = adds_residual_ ? rows.x : nullptr;
  run_mlp(kernels, task);
}

MoeHandle::MoeHandle(const NormArrays& norm, const WeightArrays& router, const WeightArrays& gate,
                     const WeightArrays& up, const WeightArrays& down, int experts_per_token,
                     bool normalizes_routing_weights,
                     const std::optional<SharedExpertArrays>& shared) {
  const int width = down.w.shape(-2), hidden = gate.w.shape(-2), num_experts = router.w.shape(-2);
  if (std::min({gate.w.shape(0), up.w.shape(0), down.w.shape(0)}) < num_experts) {
    throw std::invalid_argument("router: expected a row for each expert of gate, up and down");
  }
  if (experts_per_token < 1 || experts_per_token > num_experts) {
    throw std::invalid_argument(
        "experts_per_token: expected from 1 to the number of experts, got " +
        std::to_string(experts_per_token));
  }
  task_.norm = arrays_.keep(norm);
  task_.router = arrays_.keep(router, width);
  task_.gate = keep(gate, width);
  task_.up = keep(up, width);
  task_.down = keep(down, hidden);
  task_.experts_per_token = experts_per_token;
  task_.normalizes_routing_weights = normalizes_routing_weights;
  if (!shared) return;
  task_.shared = {arrays_.keep(shared->gate, width), arrays_.keep(shared->up, width),
                  arrays_.keep(shared->down, shared->gate.w.shape(-2)),
                  arrays_.keep(shared->shared_gate, width)};
}

void MoeHandle::run(const KernelTable& kernels, const Rows& rows, void* y) const {
  run_moe(kernels, with_rows(task_, rows, y));
}

Experts MoeHandle::keep(const WeightArrays& w, int columns) {
  return {arrays_.keep(w, columns), bytes_per_matrix(w.w), bytes_per_matrix(w.scales),
          bytes_per_matrix(w.biases)};
}

AttentionHandle::AttentionHandle(const NormArrays& norm, const ProjectionArrays& q,
                                 const ProjectionArrays& k, const ProjectionArrays& v,
                                 const ProjectionArrays& o, int head_dim, const RopeArrays& rope,
                                 const std::optional<NormArrays>& q_norm,
                                 const std::optional<NormArrays>& k_norm,
                                 const std::optional<WeightArrays>& gate) {
  const int width = o.weight.w.shape(-2);
  projection_.norm = arrays_.keep(norm);
  projection_.q_norm = arrays_.keep(q_norm);
  projection_.k_norm = arrays_.keep(k_norm);
  projection_.q = arrays_.keep(q.weight, width);
  projection_.k = arrays_.keep(k.weight, width);
  projection_.v = arrays_.keep(v.weight, width);
  projection_.q_bias = arrays_.keep(q.bias);
  projection_.k_bias = arrays_.keep(k.bias);
  projection_.v_bias = arrays_.keep(v.bias);
  projection_.heads = projection_.q.rows / head_dim;
  projection_.kv_heads = projection_.k.rows / head_dim;
  projection_.dim = head_dim;
  projection_.rope = {static_cast<const float*>(arrays_.keep(rope.frequencies)),
                      rope.frequencies.shape(0),
                      rope.traditional, rope.magnitude};
  if (gate) projection_.gate = arrays_.keep(*gate, width);
  o_ = arrays_.keep(o.weight, projection_.q.rows);
  o_bias_ = arrays_.keep(o.bias);
}

template <typename Task>
Task AttentionHandle::task(const Input& shape, const void* x, Type type,
                           OptionalPhase phase) const {
  Task task{};
  task.projection = projection_;
  task.projection.x = x;
  task.projection.type = type;
  task.projection.batch = shape.shape[0];
  task.projection.length = shape.shape[1];
  task.projection.phase = phase_of(shape, phase);
  task.o = o_;
  task.o_bias = o_bias_;
  // Rounded once, from double, as the layers do it in Python.
  task.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(projection_.dim)));
  return task;
}

template AttentionLayerTask AttentionHandle::task(const Input&, const void*, Type,
                                                  OptionalPhase) const;
template PagedAttentionLayerTask AttentionHandle::task(const Input&, const void*, Type,
                                                       OptionalPhase) const;

}  // namespace tinyllm
