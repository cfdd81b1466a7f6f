#include "layers/recurrent/delta_net.h"

#include <cmath>
#include <cstring>

#include "ceil_div.h"
#include "layers/products/products.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

// Clears y, rows of `row_bytes`, if some of them belong to no sequence. The kernel then overwrites
// the others.
void clear_unless_complete(const StateSlots& slots, int64_t row_bytes, void* y) {
  const bool has_all = slots.sequences && slots.cu_seqlens[0] == 0 &&
                       slots.cu_seqlens[slots.sequences] == slots.tokens;
  if (!has_all) std::memset(y, 0, slots.tokens * row_bytes);
}

}  // namespace

void transpose_taps(const KernelTable& kernels, const void* weight, Type type, int64_t channels,
                    int64_t width, float* taps) {
  const auto rows = aligned<float>(channels * width);
  kernels.to_floats(weight, type, rows.get(), channels * width);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < width; ++j) taps[j * channels + c] = rows[c * width + j];
  }
}

void decay_rates(const float* a_log, int64_t heads, float* rates) {
  for (int64_t h = 0; h < heads; ++h) rates[h] = std::exp(a_log[h]);
}

void run_causal_conv(const KernelTable& kernels, const CausalConvTask& t) {
  constexpr int64_t kChannels = 256;  // of a part
  const int64_t blocks = ceil_div(t.channels, kChannels);
  clear_unless_complete(t.slots, t.channels * size_of(t.type), t.y);
  Scratch scratch(kernels.causal_conv_scratch(t, kChannels));
  ThreadPool::shared().run(t.slots.sequences * blocks, [&](int64_t part, int thread) {
    const int64_t first = part % blocks * kChannels;
    kernels.causal_conv_part(t, part / blocks, first, std::min(first + kChannels, t.channels),
                             scratch[thread]);
  });
}

void run_gated_delta(const KernelTable& kernels, const GatedDeltaTask& t) {
  clear_unless_complete(t.slots, t.value_heads * t.value_dim * size_of(t.type), t.o);
  Scratch scratch(kernels.gated_delta_scratch(t));
  ThreadPool::shared().run(t.slots.sequences * t.key_heads, [&](int64_t part, int thread) {
    kernels.gated_delta_part(t, part / t.key_heads, part % t.key_heads, scratch[thread]);
  });
}

void run_mixer(const KernelTable& kernels, const MixerTask& t) {
  const GatedDeltaTask& delta = t.delta;
  clear_unless_complete(delta.slots, t.y_stride * size_of(delta.type), t.norm.y);
  Scratch scratch(kernels.mixer_scratch(t));
  ThreadPool::shared().run(delta.slots.sequences * delta.key_heads, [&](int64_t part, int thread) {
    kernels.mixer_part(t, part / delta.key_heads, part % delta.key_heads, scratch[thread]);
  });
}

void run_delta_net(const KernelTable& kernels, const DeltaNetTask& t) {
  const int64_t size = size_of(t.type);
  const int width = t.qkv.columns, value_width = t.z.rows;
  const auto stride_of = [&](int64_t columns) {
    return row_stride(kernels, t.type, t.phase, columns);
  };
  const int64_t stride = stride_of(width);
  const auto normalized = normalize(kernels, t.norm, t.x, t.tokens, width, t.type, stride);
  Operand x(kernels, normalized.get(), t.type, t.tokens, width, t.phase, stride);
  MixerTask mixer = t.mixer;
  mixer.conv.x_stride = stride_of(t.qkv.rows);
  mixer.gate_stride = mixer.y_stride = stride_of(value_width);
  auto qkv = aligned<char>(t.tokens * mixer.conv.x_stride * size);
  auto z = aligned<char>(t.tokens * mixer.gate_stride * size);
  auto a = aligned<char>(t.tokens * t.a.rows * size), b = aligned<char>(t.tokens * t.b.rows * size);
  multiply(kernels, {{&x, &t.qkv, nullptr, nullptr, qkv.get(), mixer.conv.x_stride},
                     {&x, &t.z, nullptr, nullptr, z.get(), mixer.gate_stride},
                     {&x, &t.b, nullptr, nullptr, b.get()},
                     {&x, &t.a, nullptr, nullptr, a.get()}});

  auto heads = aligned<char>(t.tokens * mixer.y_stride * size);
  mixer.conv.x = qkv.get(), mixer.delta.a = a.get(), mixer.delta.b = b.get();
  mixer.norm.gate = z.get(), mixer.norm.y = heads.get();
  mixer.conv.type = mixer.delta.type = mixer.norm.type = t.type;
  run_mixer(kernels, mixer);

  Operand joined_heads(kernels, heads.get(), t.type, t.tokens, value_width, t.phase, mixer.y_stride);
  multiply(kernels, {{&joined_heads, &t.o, nullptr, t.x, t.y}});
}

}  // namespace tinyllm
