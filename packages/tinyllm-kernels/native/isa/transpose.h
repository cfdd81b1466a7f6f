// Transpose of a square of W vectors of W lanes: lane i of vector n becomes lane n of vector i.
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

namespace transposing {

// Alternates lanes of `a` and `b`: the lower halves of both, or the upper halves if `Upper`.
template <bool Upper, int... Lanes>
inline Words zip(Words a, Words b, std::integer_sequence<int, Lanes...>) {
  constexpr int first = Upper ? W / 2 : 0;
  return __builtin_shufflevector(a, b, (Lanes % 2 * W + first + Lanes / 2)...);
}

// The position of a number has 2 log2(W) bits: its vector, then its lane. Zipping vector n with
// vector n + W / 2, for each n < W / 2, rotates these bits by one. After log2(W) rounds vector and
// lane have changed places.
template <int Rounds>
inline void zip_rounds(Words (&v)[W]) {
  constexpr std::make_integer_sequence<int, W> lanes;
  Words zipped[W];
#pragma GCC unroll 8
  for (int n = 0; n < W / 2; ++n) {
    zipped[2 * n] = zip<false>(v[n], v[n + W / 2], lanes);
    zipped[2 * n + 1] = zip<true>(v[n], v[n + W / 2], lanes);
  }
#pragma GCC unroll 16
  for (int n = 0; n < W; ++n) v[n] = zipped[n];
  if constexpr (Rounds > 1) zip_rounds<Rounds - 1>(v);
}

}  // namespace transposing

inline void transpose(Words (&v)[W]) {
  constexpr int log2_width = W == 16 ? 4 : 3;
  transposing::zip_rounds<log2_width>(v);
}

}  // namespace tinyllm::TINYLLM_ISA
