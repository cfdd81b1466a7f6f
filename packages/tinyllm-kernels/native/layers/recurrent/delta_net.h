// The recurrent kernels on all threads, and the mixer half of a gated DeltaNet layer.
//
// The half of a layer has three steps:
//
// - Project: n = norm(x). q, k and v side by side, z, b and a are projections of n.
// - Mix: causal convolution of q, k and v, the gated delta rule, gated RMSNorm by z.
// - Output: y = x + o(heads side by side).
#pragma once

#include "dispatch/kernel_table.h"
#include "layers/mlp.h"

namespace tinyllm {

// Writes the weights `C K` of a convolution as floats `K C`.
void transpose_taps(const KernelTable& kernels, const void* weight, Type type, int64_t channels,
                    int64_t width, float* taps);

// Writes e to the power of each of `heads` numbers.
void decay_rates(const float* a_log, int64_t heads, float* rates);

void run_causal_conv(const KernelTable& kernels, const CausalConvTask& task);
void run_gated_delta(const KernelTable& kernels, const GatedDeltaTask& task);
void run_mixer(const KernelTable& kernels, const MixerTask& task);

// All three steps.
struct DeltaNetTask {
  const void* x;   // T E
  int64_t tokens;  // T
  Phase phase;
  Norm norm;
  Weights qkv, z, b, a, o;
  MixerTask mixer;  // without its inputs x, a, b, gate and its output y
  void* y;          // T E
  Type type;
};

void run_delta_net(const KernelTable& kernels, const DeltaNetTask& task);

}  // namespace tinyllm
