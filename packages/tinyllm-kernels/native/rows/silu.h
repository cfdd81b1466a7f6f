// The logistic function, and SiLU: x sigmoid(x).
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

// 1 / (1 + e^-x). It is computed from e^-|x|, which never overflows. NaN stays NaN.
inline Floats sigmoid(Floats x) {
  Floats zero{};
  Floats exp_of_negative = exp(x < zero ? x : -x);
  Floats y = (x < zero ? exp_of_negative : splat(1)) / (exp_of_negative + 1);
  return x == x ? y : x;
}

inline Floats silu(Floats x) { return x * sigmoid(x); }

}  // namespace tinyllm::TINYLLM_TIER
