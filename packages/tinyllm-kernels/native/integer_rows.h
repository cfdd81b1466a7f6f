// A row of codes times a few rows of x in integers, for instruction sets with VNNI.
//
// VNNI multiplies 64 bytes with 64 signed bytes and adds the products up by fours, in one
// instruction. x has more than 8 bits, so it goes in as two planes: in each group x = scale *
// (128 high + low) with high and low in a byte, which is x to 15 bits of the largest number of the
// group. That is less than the rounding of a result to 16 bits, and the sums of integers are exact.
#pragma once

#include <algorithm>
#include <cmath>

#include "decode.h"
#include "linear.h"
#include "numbers.h"
#include "put.h"
#include "vectors.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace tinyllm::TINYLLM_TIER {

// Codes in 64 bytes.
template <int Bits>
inline constexpr int kChunk = 64 * 8 / Bits;

#if defined(__AVX512VNNI__)

inline bool multiplies_in_integers(const Weights& w, Type type) {
  return type != Type::float32 && w.mode == Mode::affine && (w.bits == 4 || w.bits == 8) &&
         w.columns % kChunk<4> == 0;
}

// The planes of x in the order in which codes lie in a chunk: of 4 bits the even codes of 64 bytes
// and then the odd ones; first all of the high plane, then the low one.
template <int Bits>
void to_planes(const float* x, int64_t count, int group, int8_t* planes, float* scales) {
  constexpr int chunk = kChunk<Bits>, planes_of_codes = 8 / Bits;
  for (int64_t g = 0; g < count / group; ++g) {
    float largest = 0;
    for (int i = 0; i < group; ++i) largest = std::max(largest, std::fabs(x[g * group + i]));
    scales[g] = largest / 16256;
    const float inverse = largest > 0 ? 16256 / largest : 0;
    for (int i = 0; i < group; ++i) {
      const int64_t k = g * group + i;
      // 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
      const int whole = std::bit_cast<int>(x[k] * inverse + 12582912.0f) - 0x4b400000;
      const int high = (whole + 64) >> 7;
      int8_t* to = planes + k / chunk * 2 * chunk;
      const int64_t at = k % planes_of_codes * 64 + k % chunk / planes_of_codes;
      to[at] = static_cast<int8_t>(high);
      to[chunk + at] = static_cast<int8_t>(whole - 128 * high);
    }
  }
}

// 64 bytes of codes times their numbers of x: 16 sums, each over the codes of four bytes.
template <int Bits>
inline Floats integer_sums(__m512i codes, const int8_t* planes) {
  const auto plane = [&](int i) { return _mm512_loadu_si512(planes + 64 * i); };
  __m512i sums = _mm512_setzero_si512();
  if constexpr (Bits == 4) {
    const __m512i low_bits = _mm512_set1_epi8(15);
    const __m512i even = _mm512_and_si512(codes, low_bits);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_bits);
    sums = _mm512_dpbusd_epi32(sums, even, plane(0));
    sums = _mm512_slli_epi32(_mm512_dpbusd_epi32(sums, odd, plane(1)), 7);
    sums = _mm512_dpbusd_epi32(sums, even, plane(2));
    sums = _mm512_dpbusd_epi32(sums, odd, plane(3));
  } else {
    sums = _mm512_slli_epi32(_mm512_dpbusd_epi32(sums, codes, plane(0)), 7);
    sums = _mm512_dpbusd_epi32(sums, codes, plane(1));
  }
  return std::bit_cast<Floats>(_mm512_cvtepi32_ps(sums));
}

// Up to four numbers from `at` on.
inline __m128 four_numbers(const void* data, Type type, int64_t at, __mmask8 which) {
  if (type == Type::float32) {
    return _mm_maskz_loadu_ps(which, static_cast<const float*>(data) + at);
  }
  const __m128i halves = _mm_maskz_loadu_epi16(which, static_cast<const uint16_t*>(data) + at);
  if (type == Type::float16) return _mm_cvtph_ps(halves);
  return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(halves), 16));
}

// The biases of a row's groups, each times the sum of x over its group.
inline float bias_sum(const Weights& w, int64_t first, const float* sums, int64_t groups) {
  return with_type(w.type, [&]<typename T>(T*) {
    const T* biases = static_cast<const T*>(w.biases) + first;
    Floats total = {};
    int64_t g = 0;
    for (; g + W <= groups; g += W) total += load_as_floats(biases + g) * load(sums + g);
    float rest = sum(total);
    for (; g < groups; ++g) rest += to_float(biases[g]) * sums[g];
    return rest;
  });
}

template <int Bits, int M>
void multiply_row_in_integers(const LinearTask& t, int64_t n) {
  const Weights& w = *t.w;
  constexpr int chunk = kChunk<Bits>;
  const uint8_t* row = static_cast<const uint8_t*>(w.data) + n * (int64_t{w.columns} * Bits / 8);
  const int64_t groups = w.columns / w.group;
  // A chunk has one scale, or two or four, each for as many lanes of its sums.
  const int in_chunk = w.group < chunk ? chunk / w.group : 1;
  const __mmask8 which = static_cast<__mmask8>((1 << in_chunk) - 1);
  alignas(64) int owner[W];
  for (int lane = 0; lane < W; ++lane) owner[lane] = lane * in_chunk / W;
  const __m512i owners = _mm512_load_si512(owner);

  Floats total[M] = {};
  for (int c = 0; c < w.columns / chunk; ++c) {
    __builtin_prefetch(row + 64 * c + 2048);
    const __m512i codes = _mm512_loadu_si512(row + 64 * c);
    const int64_t g = int64_t{c} * chunk / w.group;
    const __m128 scales = four_numbers(w.scales, w.type, n * groups + g, which);
    for (int m = 0; m < M; ++m) {
      const __m128 both = _mm_mul_ps(
          scales, _mm_maskz_loadu_ps(which, t.plane_scales + m * groups + g));
      const __m512 lanes = _mm512_permutexvar_ps(owners, _mm512_castps128_ps512(both));
      total[m] += integer_sums<Bits>(codes, t.planes + (int64_t{m} * w.columns + c * chunk) * 2) *
                  std::bit_cast<Floats>(lanes);
    }
  }
  for (int m = 0; m < M; ++m) {
    put(t, m, n, sum(total[m]) + bias_sum(w, n * groups, t.sums + m * groups, groups));
  }
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
