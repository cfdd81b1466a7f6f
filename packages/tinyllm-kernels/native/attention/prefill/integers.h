// Rows of floats as 16-bit integers times a scale, in pairs, and their products.
//
// A pair has numbers i and i + W of 2 W consecutive numbers, so that no lanes have to move.
#pragma once

#include <cmath>

#include "attention/integers.h"
#include "attention/prefill/products.h"
#include "isa/pair_products.h"

namespace tinyllm::TINYLLM_ISA {

// The largest norm of the integers of a query or a key. By the inequality of Cauchy and Schwarz the
// products of a query and a key, all or some of them, add up to less than 2^31.
inline constexpr double kMaxNorm = 46000;

// The largest integer of values, and the largest sum of the weights of a row. Their product is less
// than 2^31, even if each weight was rounded up. Values and weights have about as many bits.
inline constexpr double kMaxValue = 16383, kMaxWeightSum = 131000;

// Rounds 2 W numbers times `inverse` to W pairs.
inline Words to_integer_pairs(Floats first, Floats second, float inverse) {
  return to_integers(first, inverse) | to_integers(second, inverse) << 16;
}

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

// The micro-kernel: c = rows * columns * (a b), or c += rows * (a b) if `Add`, with the scales of
// kRegisterRows rows of a, and of N vectors of columns of b. Otherwise as `prefill_micro_kernel`.
//
// Not inlined, because GCC would keep the sums in memory.
template <bool Add, int N>
[[gnu::noinline]] void integer_micro_kernel(const IntegerPair* a, int64_t a_stride,
                                            const IntegerPair* b, int64_t depth, const float* rows,
                                            const float* columns, float* c, int64_t c_stride) {
  Ints sums[kRegisterRows][N];
#pragma GCC unroll 6
  for (auto& of_row : sums) {
#pragma GCC unroll 4
    for (Ints& sum : of_row) sum = Ints{};
  }
  for (int64_t k = 0; k < depth; ++k, b += kPanelWidth) {
    Words panel[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      panel[n] = load_words(b + n * W);
      asm("" : "+v"(panel[n]));  // GCC would read it again for each row of a
    }
#pragma GCC unroll 6
    for (int m = 0; m < kRegisterRows; ++m) {
      const Words pair = Words{} + a[m * a_stride + k].bits;
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) add_pair_products(sums[m][n], pair, panel[n]);
    }
  }
#pragma GCC unroll 6
  for (int m = 0; m < kRegisterRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      float* to = c + m * c_stride + n * W;
      const Floats product = __builtin_convertvector(sums[m][n], Floats), scale = splat(rows[m]);
      store(to, Add ? multiply_add(product, scale, load(to))
                    : product * (scale * load(columns + n * W)));
    }
  }
}

}  // namespace tinyllm::TINYLLM_ISA
