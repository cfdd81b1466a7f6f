#include "runtime/parallel.h"
#include "mlx/primitive.h"
#include "mlx/operations.h"
#include "layers/products.h"
#include "dispatch/kernels.h"
#include "mlx/weight_inputs.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class Linear : public CpuPrimitive {
 public:
  Linear(Weights w, bool biased, bool added, OptionalPhase phase)
      : w_(w), biased_(biased), added_(added), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    size_t at = 1;
    const WeightInput w(w_, inputs, at);
    const OptionalInput bias(biased_, inputs, at), residual(added_, inputs, at);
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), w, bias, residual,
                   phase = phase_, type = type_of(out.dtype()), y = allocate(out)] {
      Copies copies;
      const Weights weights = w.placed(copies);
      Operand rows(kernels, placed(x, copies), type, x.size / weights.columns, weights.columns,
                   phase_of(x, phase));
      multiply(kernels, {{&rows, &weights, bias.placed(copies), residual.placed(copies), y}});
    });
  }

  const char* name() const override { return "tinyllm::Linear"; }

 private:
  Weights w_;
  bool biased_, added_;
  OptionalPhase phase_;
};

class ExpertLinear : public CpuPrimitive {
 public:
  ExpertLinear(Weights w, OptionalPhase phase) : w_(w), phase_(phase) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    size_t at = 1;
    const WeightInput w(w_, inputs, at);
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), w, experts = Input(inputs[at]),
                   asked = phase_, type = type_of(out.dtype()), y = allocate(out),
                   itemsize = out.itemsize()] {
      Copies copies;
      const char* rows = static_cast<const char*>(placed(x, copies));
      // Without a phase the axes decide, and not the number of rows that an expert gets: that
      // depends on the other requests of the batch.
      const Phase phase = !asked && x.shape.size() < 3 ? Phase::decode : phase_of(x, asked);
      const int32_t* chosen = static_cast<const int32_t*>(placed(experts, copies));
      for (int64_t first = 0, last; first < experts.size; first = last) {
        for (last = first + 1; last < experts.size && chosen[last] == chosen[first];) ++last;
        const Weights weights = w.placed(copies, w.clamped(chosen[first]));
        const int64_t row_bytes = static_cast<int64_t>(itemsize);
        Operand run(kernels, rows + first * weights.columns * row_bytes, type, last - first,
                    weights.columns, phase);
        multiply(kernels,
                 {{&run, &weights, nullptr, nullptr, y + first * weights.rows * row_bytes}});
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
    size_t at = 1;
    const WeightInput w(w_, inputs, at);
    dispatch(out, [&kernels = kernels_, ids = Input(inputs[0]), w, y = allocate(out),
                   type = type_of(out.dtype())] {
      Copies copies;
      const int32_t* rows = static_cast<const int32_t*>(placed(ids, copies));
      const Weights table = w.placed(copies);
      in_chunks(ids.size, table.columns, [&](int64_t first, int64_t last) {
        kernels.embedding_rows(table, rows, first, last, y, type);
      });
    });
  }

  const char* name() const override { return "tinyllm::Embedding"; }

 private:
  Weights w_;
};

}  // namespace

int interleaves(const WeightArrays& w) {
  return chosen_tier().linear_interleaved_rows(describe(w, w.scales->shape(-1) * w.group_size));
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
  auto primitive =
      std::make_shared<Linear>(weights, bias.has_value(), residual.has_value(), phase);
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
