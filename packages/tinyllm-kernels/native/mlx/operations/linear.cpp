// Matrix products, the products of experts and embedding lookup as primitives of MLX.

#include "dispatch/kernel_table.h"
#include "layers/products/products.h"
#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "mlx/weight_inputs.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class Linear : public CpuPrimitive {
 public:
  Linear(Weights w, bool has_bias, bool has_residual, OptionalPhase phase)
      : w_(w), has_bias_(has_bias), has_residual_(has_residual), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    size_t index = 1;
    const WeightInput w(w_, inputs, index);
    const OptionalInput bias(has_bias_, inputs, index), residual(has_residual_, inputs, index);
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), w, bias, residual, phase = phase_,
                   type = type_of(out.dtype()), y = allocate(out)] {
      Copies copies;
      const Weights weights = w.weights(copies);
      Operand rows(kernels, contiguous_data(x, copies), type, x.size / weights.columns,
                   weights.columns, phase_of(x, phase));
      multiply(kernels, {{&rows, &weights, bias.data(copies), residual.data(copies), y}});
    });
  }

  const char* name() const override { return "tinyllm::Linear"; }

 private:
  Weights w_;
  bool has_bias_, has_residual_;
  OptionalPhase phase_;
};

class ExpertLinear : public CpuPrimitive {
 public:
  ExpertLinear(Weights w, OptionalPhase phase) : w_(w), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    size_t index = 1;
    const WeightInput w(w_, inputs, index);
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), w, experts = Input(inputs[index]),
                   stated = phase_, type = type_of(out.dtype()), y = allocate(out),
                   itemsize = out.itemsize()] {
      Copies copies;
      const char* rows = static_cast<const char*>(contiguous_data(x, copies));
      // Without a phase the number of axes decides. The number of an expert's rows must not,
      // because it depends on the other requests of the batch.
      const Phase phase = !stated && x.shape.size() < 3 ? Phase::decode : phase_of(x, stated);
      const int32_t* expert_ids = static_cast<const int32_t*>(contiguous_data(experts, copies));
      const Weights stack = w.weights(copies);
      for (int64_t first = 0, last; first < experts.size; first = last) {
        for (last = first + 1; last < experts.size && expert_ids[last] == expert_ids[first];)
          ++last;
        const Weights weights = w.of_expert(stack, expert_ids[first]);
        const int64_t row_bytes = static_cast<int64_t>(itemsize);
        Operand operand(kernels, rows + first * weights.columns * row_bytes, type, last - first,
                        weights.columns, phase);
        multiply(kernels,
                 {{&operand, &weights, nullptr, nullptr, y + first * weights.rows * row_bytes}});
      }
    });
  }

  const char* name() const override { return "tinyllm::ExpertLinear"; }

 private:
  Weights w_;
  OptionalPhase phase_;
};

class Embedding : public CpuPrimitive {
 public:
  explicit Embedding(Weights w) : w_(w) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    size_t index = 1;
    const WeightInput w(w_, inputs, index);
    dispatch(out, [&kernels = kernels_, ids = Input(inputs[0]), w, y = allocate(out),
                   type = type_of(out.dtype())] {
      Copies copies;
      const int32_t* rows = static_cast<const int32_t*>(contiguous_data(ids, copies));
      const Weights table = w.weights(copies);
      parallel_for(ids.size, table.columns, [&](int64_t first, int64_t last) {
        kernels.embedding_rows(table, rows, first, last, y, type);
      });
    });
  }

  const char* name() const override { return "tinyllm::Embedding"; }

 private:
  Weights w_;
};

}  // namespace

std::tuple<int, int> fastest_layout(const WeightArrays& w) {
  Weights weights = describe(w, w.scales->shape(-1) * w.group_size);
  if (weights.mode == Mode::affine) weights.bits = integer_bits(w.bits);
  const int rows = chosen_kernels().linear_interleaved_rows(weights);
  return {rows, rows ? weights.bits : w.bits};
}

bool uses_int8_activations(const WeightArrays& w) {
  if (!w.scales) return false;
  const Weights weights = describe(w, w.scales->shape(-1) * w.group_size);
  return rounds_x_to_int8(
      chosen_kernels().linear_kernel(weights, Type::bfloat16, Phase::decode, 1));
}

mx::array linear(const mx::array& x, const WeightArrays& w, const std::optional<mx::array>& bias,
                 const std::optional<mx::array>& residual, OptionalPhase phase) {
  std::vector<mx::array> inputs = {x};
  append(inputs, w);
  append(inputs, bias);
  append(inputs, residual);
  const Weights weights = describe(w, x.shape(-1));
  mx::Shape shape = x.shape();
  shape.back() = weights.rows;
  auto primitive = std::make_shared<Linear>(weights, bias.has_value(), residual.has_value(), phase);
  return mx::array(shape, x.dtype(), std::move(primitive), std::move(inputs));
}

mx::array expert_linear(const mx::array& x, const WeightArrays& w, const mx::array& experts,
                        OptionalPhase phase) {
  std::vector<mx::array> inputs = {x};
  append(inputs, w);
  inputs.push_back(experts);
  const Weights weights = describe(w, x.shape(-1));
  auto primitive = std::make_shared<ExpertLinear>(weights, phase);
  mx::Shape shape = x.shape();
  shape.back() = weights.rows;
  return mx::array(shape, x.dtype(), std::move(primitive), std::move(inputs));
}

mx::array embedding(const mx::array& ids, const WeightArrays& w, mx::Dtype dtype) {
  std::vector<mx::array> inputs = {ids};
  append(inputs, w);
  const int columns = w.scales ? w.scales->shape(-1) * w.group_size : w.w.shape(-1);
  mx::Shape shape = ids.shape();
  shape.push_back(columns);
  return mx::array(shape, dtype, std::make_shared<Embedding>(describe(w, columns)),
                   std::move(inputs));
}

}  // namespace tinyllm
