// SiLU: x sigmoid(x).
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

// x sigmoid(x). It is computed from e^-|x|, which never overflows. NaN stays NaN.
inline Floats silu(Floats x) {
  Floats zero{};
  Floats exp_of_negative = exp(x < zero ? x : -x);
  Floats sigmoid = (x < zero ? exp_of_negative : splat(1)) / (exp_of_negative + 1);
  return x * (x == x ? sigmoid : x);
}

}  // namespace tinyllm::TINYLLM_TIER
