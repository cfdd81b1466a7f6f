// The results of a matrix product, one by one: bias and residual added, rounded once.
#pragma once

#include "decode.h"
#include "half.h"
#include "linear.h"

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

}  // namespace tinyllm::TINYLLM_TIER
