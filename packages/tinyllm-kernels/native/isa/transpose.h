// W vectors of W lanes, turned: lane i of vector n becomes lane n of vector i.
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

namespace transposing {

// Lanes of `a` and `b` in turn, from the middle of both on if `High`.
template <bool High, int... Lanes>
inline Words zip(Words a, Words b, std::integer_sequence<int, Lanes...>) {
  constexpr int first = High ? W / 2 : 0;
  return __builtin_shufflevector(a, b, (Lanes % 2 * W + first + Lanes / 2)...);
}

// The index of a number is the bits of its vector, then those of its lane. To zip each vector of
// the first half with one of the second is to rotate these bits by one.
template <int Rounds>
inline void rotate(Words (&v)[W]) {
  constexpr std::make_integer_sequence<int, W> lanes;
  Words zipped[W];
#pragma GCC unroll 8
  for (int n = 0; n < W / 2; ++n) {
    zipped[2 * n] = zip<false>(v[n], v[n + W / 2], lanes);
    zipped[2 * n + 1] = zip<true>(v[n], v[n + W / 2], lanes);
  }
#pragma GCC unroll 16
  for (int n = 0; n < W; ++n) v[n] = zipped[n];
  if constexpr (Rounds > 1) rotate<Rounds - 1>(v);
}

}  // namespace transposing

inline void transpose(Words (&v)[W]) { transposing::rotate<W == 16 ? 4 : 3>(v); }

}  // namespace tinyllm::TINYLLM_TIER
