// Integer products of AVX2, and of AVX-512 without VNNI: pairs of 16 bits, without planes of x.
//
// The byte instructions of these sets would overflow with codes of 8 bits. With two planes of x
// they would not be faster either.
#pragma once

#include "matmul/integer/pairs.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kGemvTokens = 8;

template <int Bits>
inline constexpr float kCodeOffset = 0;

template <int Bits>
inline void store_integers(Ints a, Ints b, int8_t* to) {
  store_pairs<Bits>(a, b, to);
}

struct IntegerSums {
  Floats to_floats() const { return __builtin_convertvector(sums, Floats); }

  Ints sums{};
};

template <int Bits>
class CodeWords {
 public:
  explicit CodeWords(const uint32_t* from) : codes_(from) {}

  // Adds the products with the kXWords words of x that belong to these codes.
  void multiply_add(const int8_t* x, IntegerSums& sums) const {
    for (const Words& pair_of_codes : codes_.pairs) {
      uint32_t pair;
      std::memcpy(&pair, x, sizeof pair);
      sums.sums = add_products(sums.sums, pair_of_codes, Words{} + pair);
      x += sizeof pair;
    }
  }

 private:
  CodePairs<Bits> codes_;
};

}  // namespace tinyllm::TINYLLM_TIER
