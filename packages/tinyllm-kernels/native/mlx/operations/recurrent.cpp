// The ops of gated DeltaNet as primitives of MLX.

#include "layers/recurrent/delta_net.h"

#include <cmath>

#include "mlx/donation.h"
#include "mlx/operations.h"
#include "mlx/operations/primitive.h"
#include "mlx/operations/state_slots.h"
#include "runtime/aligned.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

namespace mx = mlx::core;

class CausalConv : public CpuPrimitives {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    release_inputs(inputs, outputs);
    char* y = allocate(outputs[0]);
    const DonatedInput state(inputs[2], outputs[1]);
    dispatch(outputs, [&kernels = kernels_, x = Input(inputs[0]), weight = Input(inputs[1]), state,
                       table = StateTableInputs(inputs, 3), y, type = type_of(inputs[0].dtype())] {
      Copies copies;
      const int64_t channels = weight.shape[0], width = weight.shape[1];
      const auto taps = aligned<float>(channels * width);
      transpose_taps(kernels, contiguous_data(weight, copies), type, channels, width, taps.get());
      run_causal_conv(kernels, {contiguous_data(x, copies), channels, y, taps.get(), channels, width,
                                state.content(), table.slots(state.shape()[0], copies), type});
    });
  }

  const char* name() const override { return "tinyllm::CausalConv"; }
};

class GatedDelta : public CpuPrimitives {
 public:
  // Inputs: q, k, v, a, b, a_log, dt_bias, state, and the table.
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    release_inputs(inputs, outputs);
    char* o = allocate(outputs[0]);
    const DonatedInput state(inputs[7], outputs[1]);
    dispatch(outputs, [&kernels = kernels_, arrays = arrays_of(inputs), state, o,
                       table = StateTableInputs(inputs, 8), type = type_of(inputs[2].dtype()),
                       bias_type = type_of(inputs[6].dtype())] {
      Copies copies;
      GatedDeltaTask task{};
      task.q = token_rows(arrays[0], task.q_stride, copies);
      task.k = token_rows(arrays[1], task.k_stride, copies);
      task.v = token_rows(arrays[2], task.v_stride, copies);
      task.a = contiguous_data(arrays[3], copies), task.b = contiguous_data(arrays[4], copies);
      task.key_heads = arrays[0].shape[1], task.key_dim = arrays[0].shape[2];
      task.value_heads = arrays[2].shape[1], task.value_dim = arrays[2].shape[2];
      const auto rates = aligned<float>(task.value_heads), bias = aligned<float>(task.value_heads);
      decay_rates(static_cast<const float*>(contiguous_data(arrays[5], copies)), task.value_heads,
                  rates.get());
      kernels.to_floats(contiguous_data(arrays[6], copies), bias_type, bias.get(),
                        task.value_heads);
      task.rates = rates.get(), task.dt_bias = bias.get();
      task.o = o, task.type = type;
      task.state = reinterpret_cast<float*>(state.content());
      task.slots = table.slots(state.shape()[0], copies);
      run_gated_delta(kernels, task);
    });
  }

  const char* name() const override { return "tinyllm::GatedDelta"; }

 private:
  static std::vector<Input> arrays_of(const std::vector<mx::array>& inputs) {
    return std::vector<Input>(inputs.begin(), inputs.begin() + 7);
  }

  // The heads of each token, contiguous. Sets the stride from a token to the next.
  static const void* token_rows(const Input& x, int64_t& stride, Copies& copies) {
    const bool has_rows = x.has_contiguous_rows() && (x.shape[1] == 1 || x.strides[1] == x.shape[2]);
    stride = has_rows ? x.strides[0] : x.shape[1] * x.shape[2];
    return has_rows ? x.data : contiguous_data(x, copies);
  }
};

class GatedRmsNorm : public CpuPrimitive {
 public:
  explicit GatedRmsNorm(float eps) : eps_(eps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override {
    dispatch(out, [&kernels = kernels_, x = Input(inputs[0]), gate = Input(inputs[1]),
                   weight = Input(inputs[2]), y = allocate(out), eps = eps_,
                   type = type_of(out.dtype())] {
      Copies copies;
      const int64_t width = x.shape.back();
      const GatedNormTask task{contiguous_data(x, copies), contiguous_data(gate, copies),
                               contiguous_data(weight, copies), y, width, eps, type};
      parallel_for(x.size / width, width, [&](int64_t first, int64_t last) {
        kernels.gated_norm_rows(task, first, last);
      });
    });
  }

  const char* name() const override { return "tinyllm::GatedRmsNorm"; }

 private:
  float eps_;
};

}  // namespace

std::vector<mx::array> causal_conv(const mx::array& x, const mx::array& weight,
                                   const mx::array& state, const StateTableArrays& table) {
  require(weight.shape(1) <= kMaxConvWidth, "weight: expected at most 16 weights per channel");
  return mx::array::make_arrays(
      {x.shape(), state.shape()}, {x.dtype(), state.dtype()}, std::make_shared<CausalConv>(),
      {x, weight, state, table.cu_seqlens, table.load_slots, table.save_slots});
}

std::vector<mx::array> gated_delta(const mx::array& q, const mx::array& k, const mx::array& v,
                                   const mx::array& a, const mx::array& b, const mx::array& a_log,
                                   const mx::array& dt_bias, const mx::array& state,
                                   const StateTableArrays& table) {
  return mx::array::make_arrays(
      {v.shape(), state.shape()}, {v.dtype(), state.dtype()}, std::make_shared<GatedDelta>(),
      {q, k, v, a, b, a_log, dt_bias, state, table.cu_seqlens, table.load_slots, table.save_slots});
}

mx::array gated_rms_norm(const mx::array& x, const mx::array& gate, const mx::array& weight,
                         float eps) {
  return mx::array(x.shape(), x.dtype(), std::make_shared<GatedRmsNorm>(eps), {x, gate, weight});
}

}  // namespace tinyllm
