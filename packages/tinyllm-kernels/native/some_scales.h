// A few scales in a vector of eight, where the instruction set cannot leave out what is not there.
#pragma once

#include <algorithm>

#include "numbers.h"

namespace tinyllm::TINYLLM_TIER {

// Numbers `at` to `at + count` of `size`, in the first lanes; zero in the others.
template <typename T>
inline Floats some(const void* data, int64_t at, int count, int64_t size) {
  static_assert(W == 8);
  constexpr Ints lane = {0, 1, 2, 3, 4, 5, 6, 7};
  const T* from = static_cast<const T*>(data) + at;
  T end[W] = {};
  if (at + W > size) from = static_cast<const T*>(std::memcpy(end, from, count * sizeof(T)));
  const Floats all = load_as_floats(from), none = {};
  return lane < count ? all : none;
}

}  // namespace tinyllm::TINYLLM_TIER
