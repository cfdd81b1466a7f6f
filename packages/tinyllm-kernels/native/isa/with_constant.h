// A run-time number as a compile-time constant, for loops that the compiler unrolls.
#pragma once

#include <cstdint>

namespace tinyllm::TINYLLM_ISA {

// Calls `work<min(number, Most)>()`. `number` is at least 1.
template <int Most, typename Work>
void with_constant(int64_t number, Work work) {
  if constexpr (Most > 1) {
    if (number < Most) return with_constant<Most - 1>(number, work);
  }
  work.template operator()<Most>();
}

}  // namespace tinyllm::TINYLLM_ISA
