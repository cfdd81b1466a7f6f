// Lane sums of four vectors at once: two shuffles a vector, instead of four for each vector alone.
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

namespace lane_sums {

// Shuffle indices count the lanes of two vectors `a` and `b`: those of `b` begin at W.

// The lower half of `a`, then the lower half of `b`. The upper halves are W / 2 further.
constexpr int lower_half(int lane) { return lane < W / 2 ? lane : W / 2 + lane; }

// The first quarter of each half of `a`, then of each half of `b`. The second quarters are W / 4
// further.
constexpr int first_quarter(int lane) { return lane / (W / 4) * (W / 2) + lane % (W / 4); }

// The lane that is `Step` further in the same quarter, cyclically.
template <int Step>
constexpr int rotated_in_quarter(int lane) {
  return lane / (W / 4) * (W / 4) + (lane + Step) % (W / 4);
}

// Adds the upper half of each vector to the lower half. The result is half a vector for `a`, then
// half a vector for `b`.
template <int... Lanes>
inline Floats add_halves(Floats a, Floats b, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(a, b, lower_half(Lanes)...) +
         __builtin_shufflevector(a, b, lower_half(Lanes) + W / 2 ...);
}

// Adds the second quarter of each half to the first quarter. The result has four quarters, which
// belong to the two halves of `a` and the two halves of `b`.
template <int... Lanes>
inline Floats add_quarters(Floats a, Floats b, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(a, b, first_quarter(Lanes)...) +
         __builtin_shufflevector(a, b, first_quarter(Lanes) + W / 4 ...);
}

// Replaces each lane by the sum of the quarter of the vector that it is in.
template <int Step, int... Lanes>
inline Floats sum_quarters(Floats v, std::integer_sequence<int, Lanes...> lanes) {
  v += __builtin_shufflevector(v, v, rotated_in_quarter<Step>(Lanes)...);
  if constexpr (Step > 1) return sum_quarters<Step / 2>(v, lanes);
  return v;
}

}  // namespace lane_sums

// Writes four floats: the lane sum of each vector.
inline void store_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  constexpr std::make_integer_sequence<int, W> lanes;
  const Floats ab = lane_sums::add_halves(a, b, lanes);
  const Floats cd = lane_sums::add_halves(c, d, lanes);
  Floats v = lane_sums::add_quarters(ab, cd, lanes);
  v = lane_sums::sum_quarters<W / 8>(v, lanes);
  using FourFloats [[gnu::vector_size(16)]] = float;
  FourFloats sums = __builtin_shufflevector(v, v, 0, W / 4, W / 2, W / 4 * 3);
  std::memcpy(to, &sums, sizeof sums);
}

}  // namespace tinyllm::TINYLLM_ISA
