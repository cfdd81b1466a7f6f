// Integer products of AVX2, and of AVX-512 without VNNI: pairs of 16 bits, without planes of x.
//
// The byte instructions of these sets add two products to a sum of 16 bits, which would overflow
// with codes of 8 bits. With two planes of x they would not be faster either. With x in int8 they
// multiply codes of 4 bits.
#pragma once

#include "matmul/integer/bytes.h"
#include "matmul/integer/pairs.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kGemvTokens = 8, kInt8GemvTokens = 8;

using Int16s [[gnu::vector_size(sizeof(Words))]] = int16_t;

template <int Bits>
inline void store_integers(Ints a, Ints b, int8_t* to) {
  store_pairs<Bits>(a, b, to);
}

using IntegerSums = PairSums;

template <Codes C>
class CodeWords {
 public:
  explicit CodeWords(const uint32_t* from) : codes_(from) {}

  // Adds the products with the kXWords words of x that belong to these codes.
  void multiply_add(const int8_t* x, IntegerSums& sums) const {
    for (const Words& pair_of_codes : codes_.pairs) {
      sums.multiply_add(pair_of_codes, x);
      x += sizeof(uint32_t);
    }
  }

 private:
  CodePairs<C> codes_;
};

// Adds two products of `codes` and x to each sum of 16 bits.
inline Int16s add_byte_pairs(Int16s sums, Words codes, Words x) {
#if defined(__AVX512BW__)
  const __m512i pairs = _mm512_maddubs_epi16(bit_cast<__m512i>(codes), bit_cast<__m512i>(x));
#else
  const __m256i pairs = _mm256_maddubs_epi16(bit_cast<__m256i>(codes), bit_cast<__m256i>(x));
#endif
  return sums + bit_cast<Int16s>(pairs);
}

// Words of codes whose products are added up in 16 bits. A word has four products for each sum of
// 16 bits, of at most 15 * 127, or 24 * 127 for E2M1.
template <Codes C>
inline constexpr int kWordsPerInt16Sum = C == Codes::e2m1 ? 2 : 4;

struct Int8Sums {
  // Adds the products of a vector of codes with a word of x.
  void multiply_add(Words codes, const int8_t* x) {
    uint32_t word;
    std::memcpy(&word, x, sizeof word);
    int16_sums = add_byte_pairs(int16_sums, codes, Words{} + word);
    asm("" : "+v"(int16_sums));  // as in `PairSums`
  }

  // Must be called after kWordsPerInt16Sum words of codes.
  void widen() {
    add_pair_products(sums, bit_cast<Words>(int16_sums), Words{} + 0x10001u);
    int16_sums = Int16s{};
  }

  Floats to_floats() const { return __builtin_convertvector(sums, Floats); }

  Int16s int16_sums{};
  Ints sums{};
};

}  // namespace tinyllm::TINYLLM_ISA
