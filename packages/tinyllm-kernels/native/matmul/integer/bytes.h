// Codes as unsigned bytes, for the products of bytes of x86-64.
#pragma once

#include <cstring>

#include "matmul/integer/words.h"

namespace tinyllm::TINYLLM_ISA {

template <Codes C>
inline constexpr float kCodeOffset = C == Codes::e2m1 ? -12 : 0;

// A word of codes as bytes; with 4 bits the even codes, then the odd codes.
template <Codes C>
struct CodeBytes {
  explicit CodeBytes(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    if constexpr (C == Codes::uint8) {
      bytes[0] = word;
    } else {
      bytes[0] = word & 0x0f0f0f0fu;
      bytes[1] = word >> 4 & 0x0f0f0f0fu;
    }
    if constexpr (C == Codes::e2m1) {
      for (Words& each : bytes) each = e2m1_bytes(each);
    }
  }

  const Words& operator[](int word) const { return bytes[word]; }

  Words bytes[8 / kBits<C>];
};

}  // namespace tinyllm::TINYLLM_ISA
