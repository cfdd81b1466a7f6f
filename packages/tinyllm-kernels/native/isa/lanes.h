// The sums of the lanes of four vectors at once: two shuffles a vector, where one alone takes four.
#pragma once

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

namespace four {

// Where lane i of the sum of two halves comes from: the first half of `a`, then that of `b`.
constexpr int half(int i) { return i < W / 2 ? i : W / 2 + i; }

// The first quarter of each half of `a`, then those of `b`.
constexpr int quarter(int i) { return i / (W / 4) * (W / 2) + i % (W / 4); }

// Lane i and the one `Step` further in its quarter.
template <int Step>
constexpr int neighbor(int i) {
  return i / (W / 4) * (W / 4) + (i + Step) % (W / 4);
}

template <int Step, int... Lanes>
inline Floats within(Floats v, std::integer_sequence<int, Lanes...> lanes) {
  v += __builtin_shufflevector(v, v, neighbor<Step>(Lanes)...);
  if constexpr (Step > 1) return within<Step / 2>(v, lanes);
  return v;
}

template <int... Lanes>
inline Floats halves(Floats a, Floats b, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(a, b, half(Lanes)...) +
         __builtin_shufflevector(a, b, half(Lanes) + W / 2 ...);
}

template <int... Lanes>
inline Floats quarters(Floats a, Floats b, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(a, b, quarter(Lanes)...) +
         __builtin_shufflevector(a, b, quarter(Lanes) + W / 4 ...);
}

}  // namespace four

// The largest lane, by halves.
template <int Half = W / 2>
inline float highest_lane(Floats v) {
  v = max(rotated<Half>(v, std::make_integer_sequence<int, W>{}), v);
  if constexpr (Half > 1) return highest_lane<Half / 2>(v);
  return v[0];
}

// Writes the sum of each of four vectors.
inline void store_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  constexpr std::make_integer_sequence<int, W> lanes;
  Floats v = four::quarters(four::halves(a, b, lanes), four::halves(c, d, lanes), lanes);
  v = four::within<W / 8>(v, lanes);
  using Four [[gnu::vector_size(16)]] = float;
  Four sums = __builtin_shufflevector(v, v, 0, W / 4, W / 2, W / 4 * 3);
  std::memcpy(to, &sums, sizeof sums);
}

}  // namespace tinyllm::TINYLLM_TIER
