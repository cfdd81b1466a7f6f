#include <stdexcept>

#include "mlx/handles.h"
#include "mlx/operations/primitive.h"

namespace tinyllm {

namespace mx = mlx::core;

DeltaNetHandle::DeltaNetHandle(const NormArrays& norm, const DeltaNetArrays& weights, int key_heads,
                               int key_dim) {
  const int width = weights.o.w.shape(-2);
  task_.norm = arrays_.keep(norm);
  task_.qkv = arrays_.keep(weights.qkv, width);
  task_.z = arrays_.keep(weights.z, width);
  task_.a = arrays_.keep(weights.a, width);
  task_.b = arrays_.keep(weights.b, width);
  task_.o = arrays_.keep(weights.o, task_.z.rows);

  const KernelTable& kernels = chosen_kernels();
  const int channels = weights.conv.shape(0), kernel = weights.conv.shape(1);
  require(kernel <= kMaxConvWidth, "conv: expected at most 16 weights per channel");
  const int heads = weights.a_log.shape(0), value_dim = task_.z.rows / heads;
  taps_.resize(static_cast<size_t>(channels) * kernel), rates_.resize(heads), dt_bias_.resize(heads);
  EvaluatedArrays inputs;
  transpose_taps(kernels, inputs.keep(weights.conv), type_of(weights.conv.dtype()), channels, kernel,
                 taps_.data());
  decay_rates(static_cast<const float*>(inputs.keep(weights.a_log)), heads, rates_.data());
  kernels.to_floats(inputs.keep(weights.dt_bias), type_of(weights.dt_bias.dtype()), dt_bias_.data(),
                    heads);

  CausalConvTask& conv = task_.mixer.conv;
  conv.taps = taps_.data(), conv.channels = channels, conv.width = kernel;
  GatedDeltaTask& delta = task_.mixer.delta;
  delta.rates = rates_.data(), delta.dt_bias = dt_bias_.data();
  delta.key_heads = key_heads, delta.value_heads = heads;
  delta.key_dim = key_dim, delta.value_dim = value_dim;
  task_.mixer.norm.weight = arrays_.keep(weights.norm.weight);
  task_.mixer.norm.width = value_dim, task_.mixer.norm.eps = weights.norm.eps;
}

void DeltaNetHandle::check(const mx::array& x, const mx::array& conv_state,
                           const mx::array& state) const {
  const CausalConvTask& conv = task_.mixer.conv;
  const GatedDeltaTask& delta = task_.mixer.delta;
  require(x.ndim() == 3 && x.shape(2) == task_.qkv.columns,
          "x: expected the shape B L E of the weights");
  require(conv_state.ndim() == 3 && conv_state.shape(1) == conv.width - 1 &&
              conv_state.shape(2) == conv.channels && conv_state.dtype() == x.dtype(),
          "caches: expected inputs of the convolution P K-1 C, of the dtype of x");
  require(state.ndim() == 4 && state.shape(0) == conv_state.shape(0) &&
              state.shape(1) == delta.value_heads && state.shape(2) == delta.value_dim &&
              state.shape(3) == delta.key_dim && state.dtype() == mx::float32,
          "caches: expected states P Hv Dv Dk of float32, with equal P");
}

void DeltaNetHandle::run(const KernelTable& kernels, const Rows& rows, char* conv_state,
                         char* state, const StateSlots& slots, void* y) const {
  DeltaNetTask task = task_;
  task.x = rows.x, task.tokens = rows.count, task.phase = rows.phase, task.type = rows.type;
  task.mixer.conv.state = conv_state;
  task.mixer.delta.state = reinterpret_cast<float*>(state);
  task.mixer.conv.slots = task.mixer.delta.slots = slots;
  task.y = y;
  run_delta_net(kernels, task);
}

}  // namespace tinyllm
