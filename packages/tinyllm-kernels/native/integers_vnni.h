// VNNI multiplies 64 bytes with 64 signed bytes and adds the products up by fours, in one
// instruction.
#pragma once

#include <immintrin.h>

#include <bit>

#include "integer_chunk.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr bool kIntegerPrompts = true;  // faster than floats
inline constexpr int kIntegerRows = 8;         // of x that are multiplied with a chunk together

template <int Bits>
inline void put_pair(int at, Ints a, Ints b, int8_t* chunk) {
  put_planes<Bits>(at, a, b, chunk);
}

template <int Bits>
struct Chunk {
  static constexpr float kOffset = 0;  // what is missing from every code

  explicit Chunk(const uint8_t* from) {
    __m512i codes = _mm512_loadu_si512(from);
    asm("" : "+v"(codes));  // to be loaded once: GCC would load it for each of its two uses
    if constexpr (Bits == 4) {
      const __m512i low_bits = _mm512_set1_epi8(15);
      parts[0] = _mm512_and_si512(codes, low_bits);
      parts[1] = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_bits);
    } else {
      parts[0] = codes;
    }
  }

  // Times their numbers of x: W sums, each over the codes of four bytes.
  Floats sums(const int8_t* planes) const {
    __m512i sums = _mm512_setzero_si512();
    for (int plane = 0; plane < 2; ++plane) {
      if (plane == 1) sums = _mm512_slli_epi32(sums, 7);
      for (int i = 0; i < 8 / Bits; ++i, planes += 64) {
        sums = _mm512_dpbusd_epi32(sums, parts[i], _mm512_loadu_si512(planes));
      }
    }
    return std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums));
  }

  __m512i parts[8 / Bits];
};

template <int Bits>
class Owners {
 public:
  explicit Owners(int group) {
    const int shift = std::countr_zero(static_cast<unsigned>(group));
    for (int c = 0; c < kChunks; ++c) {
      alignas(64) int owner[W];
      for (int lane = 0; lane < W; ++lane) {
        owner[lane] = (c * W + lane) * (kChunk<Bits> / W) >> shift;
      }
      of_[c] = _mm512_load_si512(owner);
    }
  }

  // The scale of each sum of a chunk.
  Floats spread(int chunk, Floats scales) const {
    return std::bit_cast<Floats>(
        _mm512_permutexvar_ps(of_[chunk], std::bit_cast<__m512>(scales)));
  }

 private:
  __m512i of_[kChunks];
};

// Numbers `at` to `at + count` of `size`, in the first lanes; zero in the others.
template <typename T>
inline Floats some(const void* data, int64_t at, int count, int64_t) {
  const __mmask16 which = static_cast<__mmask16>((1 << count) - 1);
  const T* from = static_cast<const T*>(data) + at;
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<Floats>(_mm512_maskz_loadu_ps(which, from));
  } else {
    const __m256i halves = _mm256_maskz_loadu_epi16(which, from);
    if constexpr (std::is_same_v<T, Float16>) {
      return std::bit_cast<Floats>(_mm512_cvtph_ps(halves));
    } else {
      return std::bit_cast<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
