// Vectors of W 32-bit numbers. The instruction set that a file is compiled for determines W.
//
// Vectors are the vector extensions of GCC and clang, so one source serves every instruction set.
// Operators work lane by lane. The compiler contracts a * b + c of vectors to one fused
// multiply-add.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tinyllm::TINYLLM_ISA {

// W is at least 8, so that W codes of any number of bits fill whole bytes. SSE2 and NEON have
// registers of 4 floats and use two for each vector.
#if defined(__AVX512F__)
inline constexpr int W = 16;
#else
inline constexpr int W = 8;
#endif

using Floats [[gnu::vector_size(4 * W)]] = float;
using Ints [[gnu::vector_size(4 * W)]] = int32_t;
using Words [[gnu::vector_size(4 * W)]] = uint32_t;
using Shorts [[gnu::vector_size(2 * W)]] = uint16_t;
using SignedShorts [[gnu::vector_size(2 * W)]] = int16_t;
using Bytes [[gnu::vector_size(W)]] = uint8_t;
using SignedBytes [[gnu::vector_size(W)]] = int8_t;

// Returns the bits of `from` as another type. Without optimization, std::bit_cast is a function
// that files compiled for different instruction sets share, though they pass vectors differently.
template <typename To, typename From>
[[gnu::always_inline]] constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

// Returns a * b + c, rounded once if the instruction set can. GCC makes vectors from single floats
// in some functions, and does not contract these: it would round twice there.
inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// The same for vectors, where GCC contracts the expression in some functions only.
inline Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return bit_cast<Floats>(
      _mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(c)));
#elif defined(__FMA__)
  return bit_cast<Floats>(
      _mm256_fmadd_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), bit_cast<__m256>(c)));
#elif defined(__aarch64__)
  struct Quads {
    float32x4_t low, high;
  };
  const Quads x = bit_cast<Quads>(a), y = bit_cast<Quads>(b), z = bit_cast<Quads>(c);
  return bit_cast<Floats>(Quads{vfmaq_f32(z.low, x.low, y.low), vfmaq_f32(z.high, x.high, y.high)});
#else
  return a * b + c;
#endif
}

// Loads and stores need no alignment.
inline Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

inline Words load_words(const void* from) {
  Words v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store_words(void* to, Words v) { std::memcpy(to, &v, sizeof v); }

// The compiler folds x - 0 to x, but not 0 + x, which is +0 for x = -0.
inline Floats splat(float x) { return x - Floats{}; }

// Lane i of the result is lane i + Shift of `v`, cyclically.
template <int Shift, int... Lanes>
inline Floats rotated(Floats v, std::integer_sequence<int, Lanes...>) {
  return __builtin_shufflevector(v, v, (Lanes + Shift) % W...);
}

// The sum of all lanes, in log2(W) steps. The order of the additions is fixed by W.
template <int Shift = W / 2>
inline float sum(Floats v) {
  v += rotated<Shift>(v, std::make_integer_sequence<int, W>{});
  if constexpr (Shift > 1) return sum<Shift / 2>(v);
  return v[0];
}

// The larger number of each lane. Returns `b` if one of the two is NaN: max(x, best) skips NaNs. GCC 12
// would use two instructions for the choice, because it does not know that NaNs may go either way.
inline Floats max(Floats a, Floats b) {
#if defined(__AVX512F__)
  return bit_cast<Floats>(_mm512_max_ps(bit_cast<__m512>(a), bit_cast<__m512>(b)));
#elif defined(__AVX__)
  return bit_cast<Floats>(_mm256_max_ps(bit_cast<__m256>(a), bit_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}

// The smaller number of each lane. Returns `b` if one of the two is NaN.
inline Floats min(Floats a, Floats b) {
#if defined(__AVX512F__)
  return bit_cast<Floats>(_mm512_min_ps(bit_cast<__m512>(a), bit_cast<__m512>(b)));
#elif defined(__AVX__)
  return bit_cast<Floats>(_mm256_min_ps(bit_cast<__m256>(a), bit_cast<__m256>(b)));
#else
  return a < b ? a : b;
#endif
}

// The largest lane, in log2(W) steps. With a NaN among the lanes the result may be any lane.
template <int Shift = W / 2>
inline float largest_lane(Floats v) {
  v = max(rotated<Shift>(v, std::make_integer_sequence<int, W>{}), v);
  if constexpr (Shift > 1) return largest_lane<Shift / 2>(v);
  return v[0];
}

// 1.5 * 2^23. The sum with a float of magnitude up to 2^22 is rounded to an integer, ties to even,
// which is in the low bits of the sum.
inline constexpr float kRounder = 12582912.0f;

// e^x for x from -88 to 89. From -87.3 to 88.3 the error is at most two units in the last place; the
// result is zero at the lower end and infinity at the upper end. NaN stays NaN.
inline Floats exp_in_range(Floats x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2. The first of the two terms of ln 2 has few bits, so that
  // its product with n is exact.
  Floats n = x * 1.44269504f + kRounder;
  Floats whole = n - kRounder;
  Floats r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `n` are the integer.
  Floats power = bit_cast<Floats>((bit_cast<Ints>(n) + 127) << 23);
  return p * power;
}

// e^x with an error of at most two units in the last place, for x from -87 to 88. Smaller x give
// zero. NaN stays NaN.
inline Floats exp(Floats x) {
  Floats low = splat(-87.0f), zero{};
  Floats y = exp_in_range(max(low, x));
  return x < low ? zero : y;
}

// Zero-extends each lane. GCC 12 would use several instructions, even where one exists, so they are
// named.
inline Words widen(Shorts v) {
#if defined(__AVX512F__)
  return bit_cast<Words>(_mm512_cvtepu16_epi32(bit_cast<__m256i>(v)));
#elif defined(__AVX2__)
  return bit_cast<Words>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, Words);
#endif
}

inline Words widen(Bytes v) {
#if defined(__AVX512F__)
  return bit_cast<Words>(_mm512_cvtepu8_epi32(bit_cast<__m128i>(v)));
#elif defined(__AVX2__)
  return bit_cast<Words>(_mm256_cvtepu8_epi32(_mm_set_epi64x(0, bit_cast<long long>(v))));
#else
  return __builtin_convertvector(v, Words);
#endif
}

// Sign-extends each lane.
inline SignedShorts widen(SignedBytes v) {
#if defined(__AVX512F__)
  return bit_cast<SignedShorts>(_mm256_cvtepi8_epi16(bit_cast<__m128i>(v)));
#elif defined(__AVX2__)
  return bit_cast<SignedShorts>(_mm_cvtepi8_epi16(_mm_set_epi64x(0, bit_cast<long long>(v))));
#else
  return __builtin_convertvector(v, SignedShorts);
#endif
}

// The lower 16 bits of each lane, whose upper bits are zero.
inline Shorts narrow(Words v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i words = bit_cast<__m256i>(v);
  return bit_cast<Shorts>(
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
  return __builtin_convertvector(v, Shorts);
#endif
}

// Selects lanes by index: lanes 0 to W - 1 are of `a`, lanes W to 2 W - 1 of `b`.
template <int... Indices>
inline Words pick(Words a, Words b, std::integer_sequence<int, Indices...>) {
  return __builtin_shufflevector(a, b, Indices...);
}

}  // namespace tinyllm::TINYLLM_ISA
