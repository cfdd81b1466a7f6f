// Quotients and multiples that are rounded up, of integers that are not negative.
#pragma once

#include <type_traits>

namespace tinyllm {

template <typename T>
[[gnu::always_inline]] constexpr T ceil_div(T count, std::type_identity_t<T> unit) {
  return (count + unit - 1) / unit;
}

// The smallest multiple of `unit` that is at least `count`.
template <typename T>
[[gnu::always_inline]] constexpr T round_up(T count, std::type_identity_t<T> unit) {
  return ceil_div(count, unit) * unit;
}

}  // namespace tinyllm
