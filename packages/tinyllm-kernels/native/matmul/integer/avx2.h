// AVX2, and AVX-512 without VNNI, multiply pairs of 16 bits, to which x goes whole. Their instructions
// for bytes would overflow with codes of 8 bits, and with two planes they save nothing.
#pragma once

#include "matmul/integer/pairs.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kIntegerRows = 8;  // of x that are multiplied with a word together

template <int Bits>
inline constexpr float kMissing = 0;  // what has been taken away from every code

template <int Bits>
inline void put_planes(Ints a, Ints b, int8_t* to) {
  put_pairs<Bits>(a, b, to);
}

struct Sums {
  Floats total() const { return __builtin_convertvector(sum, Floats); }

  Ints sum{};
};

template <int Bits>
class IntegerWord {
 public:
  explicit IntegerWord(const uint32_t* from) : pairs_(from) {}

  // Times their numbers of x.
  void multiply(const int8_t* x, Sums& sums) const {
    for (const Words& part : pairs_.parts) {
      uint32_t pair;
      std::memcpy(&pair, x, sizeof pair);
      sums.sum = add_products(sums.sum, part, Words{} + pair);
      x += sizeof pair;
    }
  }

 private:
  CodePairs<Bits> pairs_;
};

}  // namespace tinyllm::TINYLLM_TIER
