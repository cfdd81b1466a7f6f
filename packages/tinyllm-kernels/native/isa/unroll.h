// A number that is known at run time as a constant of the compiler, for loops that it unrolls.
#pragma once

#include <cstdint>

namespace tinyllm {

// Calls `work<Number>()` with the number, from 1 on, or with `Most` if it is larger.
template <int Most, typename Work>
void with_constant(int64_t number, Work work) {
  if constexpr (Most > 1) {
    if (number < Most) return with_constant<Most - 1>(number, work);
  }
  work.template operator()<Most>();
}

}  // namespace tinyllm
