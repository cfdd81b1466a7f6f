// Vectors of W numbers, W chosen by the instruction set that this file is compiled for.
//
// GCC's and clang's vector extensions give every instruction set the same source: + * >> & work
// lane by lane, and a product that is added to something becomes one fused multiply-add.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tinyllm::TINYLLM_TIER {

// Eight at least, so that W codes of any width fill whole bytes; SSE2 and NEON take two registers.
#if defined(__AVX512F__)
inline constexpr int W = 16;
#else
inline constexpr int W = 8;
#endif

using Floats [[gnu::vector_size(4 * W)]] = float;
using Ints [[gnu::vector_size(4 * W)]] = int32_t;
using Words [[gnu::vector_size(4 * W)]] = uint32_t;
using Shorts [[gnu::vector_size(2 * W)]] = uint16_t;
using Bytes [[gnu::vector_size(W)]] = uint8_t;

inline Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

inline Floats splat(float x) { return Floats{} + x; }

template <int Shift, int... Lanes>
inline Floats rotated(Floats v, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(v, v, (Lanes + Shift) % W...);
}

// The sum of all lanes, by halves: as many steps as W has bits.
template <int Half = W / 2>
inline float sum(Floats v) {
  v += rotated<Half>(v, std::make_integer_sequence<int, W>{});
  if constexpr (Half > 1) return sum<Half / 2>(v);
  return v[0];
}

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

template <int Half = W / 2>
inline float largest_lane(Floats v) {
  v = max(v, rotated<Half>(v, std::make_integer_sequence<int, W>{}));
  if constexpr (Half > 1) return largest_lane<Half / 2>(v);
  return v[0];
}

// e^x to one or two units in the last place, for x from -87 to 88; below that zero. NaN stays NaN.
inline Floats exp(Floats x) {
  Floats low = splat(-87.0f);
  Floats bounded = x < low ? low : x;
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first with few bits.
  Floats n = bounded * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  Floats whole = n - 12582912.0f;
  Floats r = bounded - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  Ints exponent = __builtin_convertvector(whole, Ints);
  Floats power = std::bit_cast<Floats>((exponent + 127) << 23);
  Floats zero{};
  return x < low ? zero : p * power;
}

// Wider lanes. GCC 12 gets there by halves or quarters, even where one instruction does it.
inline Words widen(Shorts v) {
#if defined(__AVX512F__)
  return std::bit_cast<Words>(_mm512_cvtepu16_epi32(std::bit_cast<__m256i>(v)));
#else
  return __builtin_convertvector(v, Words);
#endif
}

inline Words widen(Bytes v) {
#if defined(__AVX512F__)
  return std::bit_cast<Words>(_mm512_cvtepu8_epi32(std::bit_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, Words);
#endif
}

// The lanes of `a` and then `b`, 2 W of them, that the indices name.
template <int... Indices>
inline Words pick(Words a, Words b, std::integer_sequence<int, Indices...>) {
  return __builtin_shufflevector(a, b, Indices...);
}

}  // namespace tinyllm::TINYLLM_TIER
