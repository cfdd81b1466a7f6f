// Integer products of VNNI, with vectors of AVX-512 or of AVX2.
//
// One instruction multiplies unsigned bytes of codes by signed bytes of x and adds the products to
// W sums, four products to each.
#pragma once

#include <immintrin.h>

#include "matmul/integer/bytes.h"

namespace tinyllm::TINYLLM_ISA {

#if defined(__AVX512VNNI__)
inline constexpr int kGemvTokens = 8;
#else
inline constexpr int kGemvTokens = 4;  // 8 sums, and AVX2 has 16 registers
#endif

#if defined(TINYLLM_AMX)
inline constexpr int kInt8GemvTokens =
    1;  // tiles multiply several rows (matmul/integer/amx_gemm.h)
#elif defined(__AVX512VNNI__)
inline constexpr int kInt8GemvTokens = 16;
#else
inline constexpr int kInt8GemvTokens = 8;
#endif

template <int Bits>
inline void store_integers(Ints a, Ints b, int8_t* to) {
  store_byte_planes<Bits>(a, b, to);
}

// Adds the products of bytes of codes with a word of x.
inline void add_byte_products(Ints& sums, Words codes, const int8_t* word) {
  uint32_t x;
  std::memcpy(&x, word, sizeof x);
#if defined(__AVX512VNNI__)
  sums = bit_cast<Ints>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sums), bit_cast<__m512i>(codes),
                                            bit_cast<__m512i>(Words{} + x)));
#else
  sums = bit_cast<Ints>(_mm256_dpbusd_avx_epi32(bit_cast<__m256i>(sums), bit_cast<__m256i>(codes),
                                                bit_cast<__m256i>(Words{} + x)));
#endif
  // GCC would add in other registers and copy the sums back. This keeps them in place.
  asm("" : "+v"(sums));
}

struct IntegerSums {
  Floats to_floats() const { return __builtin_convertvector((high << 7) + low, Floats); }

  Ints high{}, low{};  // one sum for each plane of x
};

template <Codes C>
class CodeWords : private CodeBytes<C> {
 public:
  using CodeBytes<C>::CodeBytes;

  // Adds the products with the kXWords words of x that belong to these codes: first the words of
  // the high plane, then the words of the low plane.
  void multiply_add(const int8_t* x, IntegerSums& sums) const {
    constexpr int low_plane = 32 / kBits<C>;
    for (const Words& codes : this->bytes) {
      add_byte_products(sums.high, codes, x);
      add_byte_products(sums.low, codes, x + low_plane);
      x += 4;
    }
  }
};

template <Codes C>
inline constexpr int kWordsPerInt16Sum = 1;

// Sums of products with a row of x in int8, one sum for each of W rows.
struct Int8Sums {
  // Adds the products of a vector of codes with a word of x.
  void multiply_add(Words codes, const int8_t* x) { add_byte_products(sums, codes, x); }
  void widen() {}

  Floats to_floats() const { return __builtin_convertvector(sums, Floats); }

  Ints sums{};
};

}  // namespace tinyllm::TINYLLM_ISA
