// The logistic function, and SiLU: x sigmoid(x).
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

// 1 / (1 + e^-x). It is computed from e^-|x|, which never overflows. NaN stays NaN.
inline Floats sigmoid(Floats x) {
  Floats zero{};
  Floats exp_of_negative = exp(x < zero ? x : -x);
  Floats y = (x < zero ? exp_of_negative : splat(1)) / (exp_of_negative + 1);
  return x == x ? y : x;
}

// x sigmoid(x), with an error of at most 2.4 units in the last place for |x| <= 86. Smaller x give
// zero from -89 on. NaN stays NaN.
inline Floats silu(Floats x) {
  Floats bounded = min(splat(88.0f), max(splat(-89.0f), x));
  return x / (exp_in_range(-bounded) + 1);
}

}  // namespace tinyllm::TINYLLM_ISA
