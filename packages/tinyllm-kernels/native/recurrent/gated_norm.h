// Gated RMSNorm of a row.
#pragma once

#include "isa/load_store.h"
#include "rows/rms_norm.h"
#include "rows/silu.h"

namespace tinyllm::TINYLLM_ISA {

// y = x / sqrt(mean(x^2) + eps) * weight * silu(gate). `y` may be `x`.
template <typename T>
void gated_norm(const T* x, const T* gate, const T* weight, T* y, int64_t width, float eps) {
  const float scale = inverse_rms(x, width, eps);
  int64_t i = 0;
  for (; i + W <= width; i += W) {
    const Floats normalized = load_as_floats(x + i) * scale;
    store_floats(y + i, normalized * load_as_floats(weight + i) * silu(load_as_floats(gate + i)));
  }
  for (; i < width; ++i) {
    const float normalized = to_float(x[i]) * scale;
    y[i] = from_float<T>(normalized * to_float(weight[i]) * silu(splat(to_float(gate[i])))[0]);
  }
}

}  // namespace tinyllm::TINYLLM_ISA
