// The scale of RMSNorm, and numbers that are normalized as they are read.
#pragma once

#include <cmath>

#include "isa/load_store.h"

namespace tinyllm::TINYLLM_ISA {

// 1 / sqrt(mean(x^2) + eps). The order of the sum is fixed by W.
template <typename T>
float inverse_rms(const T* x, int64_t width, float eps) {
  Floats squares = {};
  int64_t i = 0;
  for (; i + W <= width; i += W) {
    Floats v = load_as_floats(x + i);
    squares += v * v;
  }
  float total = sum(squares);
  for (; i < width; ++i) total += to_float(x[i]) * to_float(x[i]);
  return 1 / std::sqrt(total / static_cast<float>(width) + eps);
}

// Reads x * scale * weight. x * scale is rounded to T before the weight multiplies it.
template <typename T>
struct Normalized {
  const T* x;
  const T* weight;
  float scale;

  // W numbers from the i-th on, and number i alone. The caller rounds them to T.
  Floats vector(int64_t i) const {
    return rounded_to<T>(load_as_floats(x + i) * scale) * load_as_floats(weight + i);
  }
  float operator[](int64_t i) const {
    return to_float(from_float<T>(to_float(x[i]) * scale)) * to_float(weight[i]);
  }
};

}  // namespace tinyllm::TINYLLM_ISA
