// Codes and x as pairs of 16-bit integers, on x86-64.
//
// A shift and a mask leave one code in each 16-bit half of a word. So with 4 bits the first pair of
// a word has codes 0 and 4, the second pair codes 1 and 5, and so on. x has the same order.
#pragma once

#include <immintrin.h>

#include "isa/pair_products.h"
#include "matmul/integer/bytes.h"

namespace tinyllm::TINYLLM_ISA {

// The first (Member 0) or second (Member 1) numbers of W pairs.
template <int Bits, int Member, int... Lanes>
inline Words pair_members(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  constexpr int pairs = kXWords<Bits>;
  return bit_cast<Words>(__builtin_shufflevector(
      a, b, (first_number<Bits>(Lanes) + Member * pairs + Lanes % pairs)...));
}

// Stores 2 W numbers as W pairs.
template <int Bits>
inline void store_pairs(Ints a, Ints b, void* to) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  const Words first = pair_members<Bits, 0>(a, b, lanes);
  const Words second = pair_members<Bits, 1>(a, b, lanes);
  const Words pairs = (first & 0xffff) | second << 16;
  std::memcpy(to, &pairs, sizeof pairs);
}

// The upper byte of each 16-bit number. GCC would shift 32-bit numbers and mask them.
inline Words upper_bytes(Words words) {
  using Numbers [[gnu::vector_size(sizeof(Words))]] = uint16_t;
  return bit_cast<Words>(bit_cast<Numbers>(words) >> 8);
}

// The pairs of a word of codes of each of W rows.
template <Codes C>
struct CodePairs {
  explicit CodePairs(const uint32_t* from) {
    if constexpr (C == Codes::e2m1) {
      // Pair n has codes n and n + 4, one in each 16-bit half.
      const CodeBytes<C> bytes(from);
      pairs[0] = bytes[0] & 0x00ff00ffu;
      pairs[1] = bytes[1] & 0x00ff00ffu;
      pairs[2] = upper_bytes(bytes[0]);
      pairs[3] = upper_bytes(bytes[1]);
    } else {
      Words word;
      std::memcpy(&word, from, sizeof word);
#pragma GCC unroll 4
      for (Words& pair : pairs) {
        pair = word & ((1u << kBits<C>)-1) * 0x10001u;  // the lowest code of each 16-bit half
        word >>= kBits<C>;
      }
    }
  }

  const Words& operator[](int pair) const { return pairs[pair]; }

  Words pairs[kXWords<kBits<C>>];
};

// Sums of products with a row of x, one sum for each of W rows of w.
struct PairSums {
  // Adds the products of W pairs of codes with a pair of x.
  void multiply_add(Words codes, const int8_t* x) {
    uint32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    add_pair_products(sums, codes, Words{} + pair);
  }
  void widen() {}

  Floats to_floats() const { return __builtin_convertvector(sums, Floats); }

  Ints sums{};
};

}  // namespace tinyllm::TINYLLM_ISA
