// The results of a matrix product, one by one: bias and residual added, rounded once.
#pragma once

#include "decode.h"
#include "half.h"
#include "linear.h"
#include "numbers.h"
#include "vectors.h"

namespace tinyllm::TINYLLM_TIER {

inline void put(const LinearTask& t, int64_t m, int64_t n, float value) {
  int64_t at = m * t.w->rows + n;
  if (t.bias) value += number(t.bias, t.type, n);
  if (t.residual) value += number(t.residual, t.type, at);
  switch (t.type) {
    case Type::float32: static_cast<float*>(t.y)[at] = value; break;
    case Type::float16: static_cast<Float16*>(t.y)[at] = from_float<Float16>(value); break;
    default: static_cast<BFloat16*>(t.y)[at] = from_float<BFloat16>(value); break;
  }
}

// Of up to W results of row m side by side, from the n-th on.
inline void put_some(const LinearTask& t, int64_t m, int64_t n, const float* values, int64_t count) {
  if (count < W) {
    for (int64_t i = 0; i < count; ++i) put(t, m, n + i, values[i]);
    return;
  }
  with_type(t.type, [&]<typename T>(T*) {
    const int64_t at = m * t.w->rows + n;
    Floats sums = load(values);
    if (t.bias) sums += load_as_floats(static_cast<const T*>(t.bias) + n);
    if (t.residual) sums += load_as_floats(static_cast<const T*>(t.residual) + at);
    store_floats(static_cast<T*>(t.y) + at, sums);
  });
}

}  // namespace tinyllm::TINYLLM_TIER
