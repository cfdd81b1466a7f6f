// The mixer of a gated DeltaNet layer on random inputs.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "check/data/array.h"
#include "layers/recurrent/delta_net.h"

namespace tinyllm::check {

// Large, because heads of some random data are near zero, and their norm with a small number would
// amplify the rounding of q, k and v.
inline constexpr float kMixerEps = 0.1f;

// The inputs and states of a pass. The pass is one sequence without loads and saves.
struct Mixer {
  Mixer(Type type, int key_heads, int value_heads, int key_dim, int value_dim, int width, int tokens,
        int slots)
      : type(type),
        key_heads(key_heads),
        value_heads(value_heads),
        key_dim(key_dim),
        value_dim(value_dim),
        width(width),
        tokens(tokens),
        slots(slots) {
    for (int h = 0; h < value_heads; ++h) {
      rates[h] = static_cast<float>(std::exp(normal()));
      dt_bias[h] = static_cast<float>(normal());
    }
  }

  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }

  // The mixer without its products.
  MixerTask task() {
    const StateSlots table{starts.data(), loads.data(), saves.data(),
                           static_cast<int64_t>(loads.size()), tokens, slots};
    MixerTask task{};
    task.conv = {x.bytes.data(), channels(), nullptr, reinterpret_cast<const float*>(taps.bytes.data()),
                 channels(), width, conv_state.bytes.data(), table, type};
    GatedDeltaTask& delta = task.delta;
    delta.a = a.bytes.data(), delta.b = b.bytes.data();
    delta.rates = rates.data(), delta.dt_bias = dt_bias.data();
    delta.key_heads = key_heads, delta.value_heads = value_heads;
    delta.key_dim = key_dim, delta.value_dim = value_dim;
    delta.state = reinterpret_cast<float*>(state.bytes.data());
    delta.slots = table, delta.type = type;
    task.norm = {nullptr, z.bytes.data(), norm.bytes.data(), y.bytes.data(), value_dim, kMixerEps,
                 type};
    task.gate_stride = task.y_stride = int64_t{value_heads} * value_dim;
    return task;
  }

  void compute(const KernelTable& kernels) { run_mixer(kernels, task()); }

  Type type;
  int key_heads, value_heads, key_dim, value_dim, width, tokens, slots;
  std::vector<int32_t> starts = {0, tokens}, loads = {-1};
  std::vector<int32_t> saves = std::vector<int32_t>(tokens, -1);
  Array x = Array::random(type, size_t(tokens) * channels());
  Array taps = Array::random(Type::float32, size_t(width) * channels());
  Array conv_state = Array::random(type, size_t(slots) * (width - 1) * channels());
  Array a = Array::random(type, size_t(tokens) * value_heads);
  Array b = Array::random(type, size_t(tokens) * value_heads);
  std::vector<float> rates = std::vector<float>(value_heads);
  std::vector<float> dt_bias = std::vector<float>(value_heads);
  Array state = Array::random(Type::float32, size_t(slots) * value_heads * value_dim * key_dim);
  Array z = Array::random(type, size_t(tokens) * value_heads * value_dim);
  Array norm = Array::random(type, value_dim);
  Array y = Array(type, size_t(tokens) * value_heads * value_dim);
};

}  // namespace tinyllm::check
