// Words of codes for those instructions of NEON that multiply signed bytes.
#pragma once

#include <arm_neon.h>

#include "matmul/integer/words.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kIntegerRows = 4;  // of x that are multiplied with a word together

// What has been taken away from every code: those of 8 bits are signed without 128.
template <int Bits>
inline constexpr float kMissing = Bits == 8 ? 128 : 0;

template <int Bits>
inline void put_planes(Ints a, Ints b, int8_t* to) {
  put_byte_planes<Bits>(a, b, to);
}

}  // namespace tinyllm::TINYLLM_TIER
