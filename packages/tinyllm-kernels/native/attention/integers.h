// Numbers as 16-bit integers times a scale. Their products in pairs are exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

// Two 16-bit integers, the first in the lower 16 bits.
struct IntegerPair {
  uint32_t bits;
};

// The largest integer of queries, keys and weights.
inline constexpr double kMaxInteger = 32767;

// The largest norm of the integers of a query or a key. By the inequality of Cauchy and Schwarz the
// products of a query and a key, all or some of them, add up to less than 2^31.
inline constexpr double kMaxNorm = 46000;

// The largest integer of values, and the largest sum of the weights of a row. Their product is less
// than 2^31, even if each weight was rounded up. Values and weights have about as many bits.
inline constexpr double kMaxValue = 16383, kMaxWeightSum = 131000;

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
  return bit_cast<Words>(multiply_add(x, splat(inverse), splat(kRounder))) & 0xffff;
}

inline Floats absolute(Floats x) { return bit_cast<Floats>(bit_cast<Words>(x) & 0x7fffffffu); }

// The size of the finite numbers of a row.
struct RowSize {
  IntegerScale of_query_or_key() const {
    return IntegerScale(std::max(norm / kMaxNorm, largest / kMaxInteger));
  }
  IntegerScale of_value() const { return IntegerScale(largest / kMaxValue); }

  double norm = 0;    // the square root of the sum of squares, which may be too large for a float
  float largest = 0;  // the largest absolute value
  bool is_finite = true;
};

// The size of a row whose sum of squares is not finite, or too small for a float.
[[gnu::noinline]] inline RowSize size_of_rare_row(const float* row, int64_t width) {
  RowSize size;
  double squares = 0;
  for (int64_t d = 0; d < width; ++d) {
    if (std::isfinite(row[d])) {
      squares += static_cast<double>(row[d]) * row[d];
      size.largest = std::max(size.largest, std::abs(row[d]));
    } else {
      size.is_finite = false;
    }
  }
  size.norm = std::sqrt(squares);
  return size;
}

// `width` is a multiple of W.
inline RowSize size_of_row(const float* row, int64_t width) {
  Floats squares{}, largest{};
  for (int64_t d = 0; d < width; d += W) {
    const Floats x = load(row + d);
    squares = multiply_add(x, x, squares);
    largest = max(absolute(x), largest);
  }
  const float total = sum(squares);
  if (!(total > 1e-30f && total < 1e30f)) return size_of_rare_row(row, width);
  return {std::sqrt(total), largest_lane(largest)};
}

}  // namespace tinyllm::TINYLLM_ISA
