// Numbers as 16-bit integers times a scale. Their products in pairs are exact.
#pragma once

#include <algorithm>
#include <cstdint>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

// Two 16-bit integers, the first in the lower 16 bits.
struct IntegerPair {
  uint32_t bits;
};

// The largest integer of queries, keys and weights.
inline constexpr double kMaxInteger = 32767;

// A number is its integer times `scale`.
struct IntegerScale {
  // The inverse of a smaller scale might be infinite. Such numbers are rounded to multiples of
  // 2^-126, the smallest normal float.
  explicit IntegerScale(double size)
      : scale(static_cast<float>(std::max(size, 0x1p-126))),
        inverse(static_cast<float>(1 / std::max(size, 0x1p-126))) {}

  float scale, inverse;
};

// The integers next to x times `inverse`, in the lower 16 bits of each lane. Infinities and NaN
// become 0, if their lower 16 bits are 0, as those of bfloat16 numbers are.
inline Words to_integers(Floats x, float inverse) {
  const Floats rounder = splat(12582912.0f);  // 1.5 * 2^23: the sum has the integer in its low bits
  return bit_cast<Words>(multiply_add(x, splat(inverse), rounder)) & 0xffff;
}

inline Floats absolute(Floats x) { return bit_cast<Floats>(bit_cast<Words>(x) & 0x7fffffffu); }

}  // namespace tinyllm::TINYLLM_ISA
