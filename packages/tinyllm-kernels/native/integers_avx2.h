// AVX2 multiplies 16 numbers of 16 bits and adds the products up in pairs, in one instruction. Its
// instruction for bytes would overflow with codes of 8 bits, and with two planes it saves nothing.
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

struct Sums {
  Floats total() const { return std::bit_cast<Floats>(_mm256_cvtepi32_ps(sum)); }

  __m256i sum{};
};

template <int Bits>
class IntegerWord {
 public:
  explicit IntegerWord(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    const __m256i low_bits = _mm256_set1_epi16((1 << Bits) - 1);
    for (__m256i& part : parts_) {
      part = _mm256_and_si256(std::bit_cast<__m256i>(word), low_bits);
      word >>= Bits;
    }
  }

  // Times their numbers of x.
  void multiply(const int8_t* x, Sums& sums) const {
    for (const __m256i& part : parts_) {
      int32_t pair;
      std::memcpy(&pair, x, sizeof pair);
      sums.sum = _mm256_add_epi32(sums.sum, _mm256_madd_epi16(part, _mm256_set1_epi32(pair)));
      x += sizeof pair;
    }
  }

 private:
  __m256i parts_[16 / Bits];
};

}  // namespace tinyllm::TINYLLM_TIER
