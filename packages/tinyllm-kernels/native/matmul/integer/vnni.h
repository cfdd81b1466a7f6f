// VNNI multiplies 64 bytes with 64 signed bytes and adds the products up by fours, in one
// instruction.
#pragma once

#include <immintrin.h>

#include <bit>

#include "matmul/integer/words.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kIntegerRows = 8;  // of x that are multiplied with a word together

template <int Bits>
inline constexpr float kMissing = 0;  // what has been taken away from every code

template <int Bits>
inline void put_planes(Ints a, Ints b, int8_t* to) {
  put_byte_planes<Bits>(a, b, to);
}

struct Sums {
  Floats total() const {
    return std::bit_cast<Floats>(
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low)));
  }

  __m512i high{}, low{};
};

template <int Bits>
class IntegerWord {
 public:
  explicit IntegerWord(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    const __m512i codes = std::bit_cast<__m512i>(word);
    if constexpr (Bits == 4) {
      const __m512i low_bits = _mm512_set1_epi8(15);
      parts_[0] = _mm512_and_si512(codes, low_bits);
      parts_[1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_bits);
    } else {
      parts_[0] = codes;
    }
  }

  // Times their numbers of x.
  void multiply(const int8_t* x, Sums& sums) const {
    for (const __m512i& part : parts_) {
      sums.high = _mm512_dpbusd_epi32(sums.high, part, everywhere(x));
      sums.low = _mm512_dpbusd_epi32(sums.low, part, everywhere(x + sizeof parts_ / 16));
      // GCC would add into other registers and copy them back: sums stay where they are.
      asm("" : "+v"(sums.high), "+v"(sums.low));
      x += 4;
    }
  }

 private:
  static __m512i everywhere(const int8_t* word) {
    int32_t bytes;
    std::memcpy(&bytes, word, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }

  __m512i parts_[8 / Bits];
};

}  // namespace tinyllm::TINYLLM_TIER
