// Integer products of AVX-512 VNNI.
//
// One instruction multiplies 64 unsigned bytes of codes by 64 signed bytes of x and adds the
// products to 16 sums, four products to each.
#pragma once

#include <immintrin.h>

#include "matmul/integer/words.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kGemvTokens = 8;
#if defined(TINYLLM_AMX)
inline constexpr int kInt8GemvTokens =
    1;  // tiles multiply several rows (matmul/integer/amx_gemm.h)
#else
inline constexpr int kInt8GemvTokens = 16;
#endif

template <Codes C>
inline constexpr float kCodeOffset = C == Codes::e2m1 ? -12 : 0;

template <int Bits>
inline void store_integers(Ints a, Ints b, int8_t* to) {
  store_byte_planes<Bits>(a, b, to);
}

struct IntegerSums {
  // 128 high + low.
  Floats to_floats() const {
    return bit_cast<Floats>(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low)));
  }

  __m512i high{}, low{};  // one sum for each plane of x
};

// Four bytes of x in all lanes.
inline __m512i broadcast(const int8_t* word) {
  int32_t bytes;
  std::memcpy(&bytes, word, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

// A word of codes as bytes; with 4 bits the even codes, then the odd codes.
template <Codes C>
struct CodeBytes {
  explicit CodeBytes(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    const __m512i codes = bit_cast<__m512i>(word);
    if constexpr (C == Codes::uint8) {
      bytes[0] = codes;
    } else {
      const __m512i low_bits = _mm512_set1_epi8(15);
      bytes[0] = _mm512_and_si512(codes, low_bits);
      bytes[1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_bits);
    }
    if constexpr (C == Codes::e2m1) {
      for (__m512i& each : bytes) {
        each = bit_cast<__m512i>(e2m1_bytes(bit_cast<Words>(each)));
      }
    }
  }

  __m512i bytes[8 / kBits<C>];
};

template <Codes C>
class CodeWords : private CodeBytes<C> {
 public:
  using CodeBytes<C>::CodeBytes;

  // Adds the products with the kXWords words of x that belong to these codes: first the words of
  // the high plane, then the words of the low plane.
  void multiply_add(const int8_t* x, IntegerSums& sums) const {
    constexpr int low_plane = 32 / kBits<C>;
    for (const __m512i& codes : this->bytes) {
      sums.high = _mm512_dpbusd_epi32(sums.high, codes, broadcast(x));
      sums.low = _mm512_dpbusd_epi32(sums.low, codes, broadcast(x + low_plane));
      // GCC would add in other registers and copy the sums back. This keeps them in place.
      asm("" : "+v"(sums.high), "+v"(sums.low));
      x += 4;
    }
  }
};

template <Codes C>
inline constexpr int kWordsPerInt16Sum = 1;

// Sums of products with a row of x in int8, one sum for each of W rows.
struct Int8Sums {
  // Adds the products of a vector of codes with a word of x.
  void multiply_add(__m512i codes, const int8_t* x) {
    sums = _mm512_dpbusd_epi32(sums, codes, broadcast(x));
    asm("" : "+v"(sums));  // as in `CodeWords`
  }
  void widen() {}

  Floats to_floats() const { return bit_cast<Floats>(_mm512_cvtepi32_ps(sums)); }

  __m512i sums{};
};

}  // namespace tinyllm::TINYLLM_ISA
