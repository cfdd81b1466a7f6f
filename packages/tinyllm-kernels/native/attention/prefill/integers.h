// Rows of floats as 16-bit integers times a scale, in pairs, and their products.
//
// A pair has numbers i and i + W of 2 W consecutive numbers, so that no lanes have to move.
#pragma once

#include "attention/integers.h"
#include "attention/prefill/products.h"
#include "isa/pair_products.h"

namespace tinyllm::TINYLLM_ISA {

// Rounds 2 W numbers times `inverse` to W pairs.
inline Words to_integer_pairs(Floats first, Floats second, float inverse) {
  return to_integers(first, inverse) | to_integers(second, inverse) << 16;
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
