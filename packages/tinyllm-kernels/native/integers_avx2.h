// AVX2 multiplies 16 numbers of 16 bits and adds the products up in pairs, in one instruction, and
// AVX-512 without VNNI 32 of them. Their instructions for bytes would overflow with codes of 8 bits,
// and with two planes they save nothing.
#pragma once

#include <immintrin.h>

#include <bit>

#include "integer_words.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr bool kIntegerPrompts = false;  // floats are as fast once they are unpacked
inline constexpr int kIntegerRows = 8;          // of x that are multiplied with a word together

template <int Bits>
inline constexpr float kMissing = 0;  // what has been taken away from every code

// The first or the second numbers of W pairs: a shift brings up a code in each half of a word.
template <int Bits, int Half, int... Lanes>
inline Words half_numbers(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  constexpr int pairs = kPlanes<Bits>;
  return std::bit_cast<Words>(
      __builtin_shufflevector(a, b, (word_of<Bits>(Lanes) + Half * pairs + Lanes % pairs)...));
}

template <int Bits>
inline void put_planes(Ints a, Ints b, int8_t* to) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  const Words pairs =
      (half_numbers<Bits, 0>(a, b, lanes) & 0xffff) | half_numbers<Bits, 1>(a, b, lanes) << 16;
  std::memcpy(to, &pairs, sizeof pairs);
}

inline Ints multiply_pairs(Words a, Words b) {
#if defined(__AVX512BW__)
  return std::bit_cast<Ints>(
      _mm512_madd_epi16(std::bit_cast<__m512i>(a), std::bit_cast<__m512i>(b)));
#else
  return std::bit_cast<Ints>(
      _mm256_madd_epi16(std::bit_cast<__m256i>(a), std::bit_cast<__m256i>(b)));
#endif
}

struct Sums {
  Floats total() const { return __builtin_convertvector(sum, Floats); }

  Ints sum{};
};

template <int Bits>
class IntegerWord {
 public:
  explicit IntegerWord(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    for (Words& part : parts_) {
      part = word & ((1u << Bits) - 1) * 0x10001u;  // the lowest code of each half
      word >>= Bits;
    }
  }

  // Times their numbers of x.
  void multiply(const int8_t* x, Sums& sums) const {
    for (const Words& part : parts_) {
      uint32_t pair;
      std::memcpy(&pair, x, sizeof pair);
      sums.sum += multiply_pairs(part, Words{} + pair);
      x += sizeof pair;
    }
  }

 private:
  Words parts_[16 / Bits];
};

}  // namespace tinyllm::TINYLLM_TIER
