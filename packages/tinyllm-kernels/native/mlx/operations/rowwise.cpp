// RMSNorm, SwiGLU, RoPE and the output gate as primitives of MLX.

#include "mlx/operations.h"

#include <algorithm>
#include <memory>

#include "layers/rope_table.h"
#include "mlx/inputs.h"
#include "mlx/operations/primitive.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class RmsNorm : public CpuPrimitive {
 public:
  explicit RmsNorm(float eps) : eps_(eps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), weight = Input(inputs[1]),
                   y = allocate(out), eps = eps_, type = type_of(out.dtype())] {
      Copies copies;
      const int64_t width = x.shape.back();
      const RmsNormTask task{
          contiguous_data(x, copies), contiguous_data(weight, copies), y, width, eps, type};
      parallel_for(x.size / width, width,
                   [&](int64_t first, int64_t last) { kernels.rms_norm_rows(task, first, last); });
    });
  }

  const char* name() const override { return "tinyllm::RmsNorm"; }

 private:
  float eps_;
};

class Swiglu : public CpuPrimitive {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, gate = Input(inputs[0]), up = Input(inputs[1]),
                   y = allocate(out), type = type_of(out.dtype())] {
      Copies copies;
      const SwigluTask task{contiguous_data(gate, copies), contiguous_data(up, copies), y, type};
      parallel_for(gate.size, 1,
                   [&](int64_t first, int64_t last) { kernels.swiglu_range(task, first, last); });
    });
  }

  const char* name() const override { return "tinyllm::Swiglu"; }
};

class OutputGate : public CpuPrimitive {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), gate = Input(inputs[1]),
                   y = allocate(out), type = type_of(out.dtype())] {
      Copies copies;
      const OutputGateTask task{contiguous_data(x, copies), contiguous_data(gate, copies), y, type};
      parallel_for(x.size, 1, [&](int64_t first, int64_t last) {
        kernels.output_gate_range(task, first, last);
      });
    });
  }

  const char* name() const override { return "tinyllm::OutputGate"; }
};

class Rope : public CpuPrimitive {
 public:
  Rope(bool traditional, float magnitude) : traditional_(traditional), magnitude_(magnitude) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), positions = Input(inputs[1]),
                   frequencies = Input(inputs[2]), y = allocate(out), type = type_of(out.dtype()),
                   traditional = traditional_, magnitude = magnitude_] {
      Copies copies;
      const int64_t length = x.shape[1], heads = x.shape[2], dim = x.shape[3];
      RopeTask task{};
      std::copy_n(x.strides.begin(), 3, task.strides);
      task.x = x.data;
      if (!x.has_contiguous_rows()) {
        task.x = contiguous_data(x, copies);
        task.strides[0] = length * heads * dim, task.strides[1] = heads * dim;
        task.strides[2] = dim;
      }
      task.y = y;
      task.y_strides[0] = length * heads * dim, task.y_strides[1] = heads * dim;
      task.y_strides[2] = dim;
      const Positions token_positions{
          static_cast<const int32_t*>(contiguous_data(positions, copies)), positions.size,
          positions.shape[0] == 1};
      const RopeSettings settings{static_cast<const float*>(contiguous_data(frequencies, copies)),
                                  frequencies.size, traditional, magnitude};
      RopeTable table;
      task.table = table.get(kernels, token_positions, settings);
      task.length = length, task.heads = heads, task.dim = dim;
      task.pairs = settings.pairs;
      task.shares_positions = token_positions.are_shared;
      task.traditional = traditional;
      task.type = type;
      parallel_for(x.shape[0] * length, heads * dim,
                   [&](int64_t first, int64_t last) { kernels.rope_tokens(task, first, last); });
    });
  }

  const char* name() const override { return "tinyllm::Rope"; }

 private:
  bool traditional_;
  float magnitude_;
};

// Makes an array of the shape and dtype of `like`.
template <typename Primitive, typename... Arguments>
mx::array make(const mx::array& like, std::vector<mx::array> inputs, Arguments... arguments) {
  return mx::array(like.shape(), like.dtype(), std::make_shared<Primitive>(arguments...),
                   std::move(inputs));
}

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps) {
  return make<RmsNorm>(x, {x, weight}, eps);
}

mx::array output_gate(const mx::array& x, const mx::array& gate) {
  return make<OutputGate>(x, {x, gate});
}

mx::array swiglu(const mx::array& gate, const mx::array& up) {
  return make<Swiglu>(gate, {gate, up});
}

mx::array rope(const mx::array& x, const mx::array& positions, const mx::array& frequencies,
               bool traditional, float magnitude) {
  return make<Rope>(x, {x, positions, frequencies}, traditional, magnitude);
}

}  // namespace tinyllm
