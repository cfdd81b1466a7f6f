// Pairs of integers of 16 bits, which x86-64 multiplies in one instruction, adding both products of a
// pair up: 16 numbers with AVX2, 32 with AVX-512, which with VNNI adds the sum as well.
//
// A shift and a mask leave a code in each half of a word. So the first word of a pair of 4 bits is
// that of the codes 0 and 4, the next one that of 1 and 5; and x lies likewise.
#pragma once

#include <immintrin.h>

#include <bit>

#include "matmul/integer/words.h"

namespace tinyllm::TINYLLM_TIER {

// The first or the second numbers of W pairs.
template <int Bits, int Half, int... Lanes>
inline Words half_numbers(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  constexpr int pairs = kPlanes<Bits>;
  return std::bit_cast<Words>(
      __builtin_shufflevector(a, b, (word_of<Bits>(Lanes) + Half * pairs + Lanes % pairs)...));
}

// 2 W numbers as W pairs.
template <int Bits>
inline void put_pairs(Ints a, Ints b, void* to) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  const Words pairs =
      (half_numbers<Bits, 0>(a, b, lanes) & 0xffff) | half_numbers<Bits, 1>(a, b, lanes) << 16;
  std::memcpy(to, &pairs, sizeof pairs);
}

// The pairs of a word of codes of each of W rows.
template <int Bits>
struct CodePairs {
  explicit CodePairs(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    for (Words& part : parts) {
      part = word & ((1u << Bits) - 1) * 0x10001u;  // the lowest code of each half
      word >>= Bits;
    }
  }

  Words parts[kPlanes<Bits>];
};

inline Ints add_products(Ints sums, Words a, Words b) {
#if defined(__AVX512VNNI__)
  return std::bit_cast<Ints>(_mm512_dpwssd_epi32(
      std::bit_cast<__m512i>(sums), std::bit_cast<__m512i>(a), std::bit_cast<__m512i>(b)));
#elif defined(__AVX512BW__)
  return sums + std::bit_cast<Ints>(_mm512_madd_epi16(std::bit_cast<__m512i>(a),
                                                      std::bit_cast<__m512i>(b)));
#else
  return sums + std::bit_cast<Ints>(_mm256_madd_epi16(std::bit_cast<__m256i>(a),
                                                      std::bit_cast<__m256i>(b)));
#endif
}

}  // namespace tinyllm::TINYLLM_TIER
