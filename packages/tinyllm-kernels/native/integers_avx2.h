// AVX2 multiplies 16 numbers of 16 bits and adds the products up in pairs, in one instruction. Its
// instruction for bytes would overflow with codes of 8 bits, and with two planes it saves nothing.
#pragma once

#include <immintrin.h>

#include <bit>

#include "integer_chunk.h"
#include "some_scales.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr bool kIntegerPrompts = false;  // floats are as fast once they are unpacked
inline constexpr int kIntegerRows = 4;          // of x that are multiplied with a chunk together

// Of 4 bits every fourth number side by side, as a shift of words of 16 bits brings up their codes.
template <int Bits>
inline void put_pair(int at, Ints a, Ints b, int8_t* chunk) {
  if constexpr (Bits == 4) {
    constexpr auto lanes = std::make_integer_sequence<int, 4>{};
    int8_t* to = chunk + at / 4 * 2;
    store_lanes<int16_t, 0, 4>(to, a, b, lanes);
    store_lanes<int16_t, 1, 4>(to + 32, a, b, lanes);
    store_lanes<int16_t, 2, 4>(to + 64, a, b, lanes);
    store_lanes<int16_t, 3, 4>(to + 96, a, b, lanes);
  } else {
    store_lanes<int16_t, 0, 1>(chunk + 2 * at, a, b, std::make_integer_sequence<int, 2 * W>{});
  }
}

template <int Bits>
struct Chunk {
  static constexpr float kOffset = 0;  // what is missing from every code

  explicit Chunk(const uint8_t* from) {
    if constexpr (Bits == 4) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
      const __m256i low_bits = _mm256_set1_epi16(15);
      parts[0] = _mm256_and_si256(codes, low_bits);
      parts[1] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low_bits);
      parts[2] = _mm256_and_si256(_mm256_srli_epi16(codes, 8), low_bits);
      parts[3] = _mm256_srli_epi16(codes, 12);
    } else {
      const __m128i* halves = reinterpret_cast<const __m128i*>(from);
      parts[0] = _mm256_cvtepu8_epi16(_mm_loadu_si128(halves));
      parts[1] = _mm256_cvtepu8_epi16(_mm_loadu_si128(halves + 1));
    }
  }

  // Times their numbers of x: W sums, each over the codes of four bytes.
  Floats sums(const int8_t* x) const {
    const __m256i* numbers = reinterpret_cast<const __m256i*>(x);
    __m256i sums = _mm256_madd_epi16(parts[0], _mm256_loadu_si256(numbers));
    for (int i = 1; i < 16 / Bits; ++i) {
      const __m256i more = _mm256_madd_epi16(parts[i], _mm256_loadu_si256(numbers + i));
      sums = _mm256_add_epi32(sums, more);
    }
    return std::bit_cast<Floats>(_mm256_cvtepi32_ps(sums));
  }

  __m256i parts[16 / Bits];
};

template <int Bits>
class Owners {
 public:
  explicit Owners(int group) {
    const int shift = std::countr_zero(static_cast<unsigned>(group));
    for (int c = 0; c < kChunks; ++c) {
      alignas(32) int owner[W];
      for (int lane = 0; lane < W; ++lane) {
        owner[lane] = (c * W + lane) * (kChunk<Bits> / W) >> shift;
      }
      of_[c] = _mm256_load_si256(reinterpret_cast<const __m256i*>(owner));
    }
  }

  // The scale of each sum of a chunk.
  Floats spread(int chunk, Floats scales) const {
    return std::bit_cast<Floats>(
        _mm256_permutevar8x32_ps(std::bit_cast<__m256>(scales), of_[chunk]));
  }

 private:
  __m256i of_[kChunks];
};

}  // namespace tinyllm::TINYLLM_TIER
