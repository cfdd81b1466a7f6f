// Words of codes times x in integers. Each instruction set has a file of its own for it, with the
// same parts:
//
//   put_planes   2 W numbers of x as words of codes want them
//   IntegerWord  32 bits of codes of each of W rows, unpacked, to be multiplied with x
//   Sums         what these products add up to, row by row
//
// x has 15 bits. Instructions that multiply bytes get it as two planes of bytes, x = 128
// high + low, and AVX2 and AVX-512 without VNNI as numbers of 16 bits. No sum overflows: a group
// adds up to 128 * 255 * 16256 at most, which is below 2^30.
#pragma once

#include <utility>

#include "isa/load_store.h"
#include "isa/vectors.h"

#if defined(__AVX512VNNI__)
#define TINYLLM_INTEGERS "matmul/integer/vnni.h"
#elif defined(__AVX2__)
#define TINYLLM_INTEGERS "matmul/integer/avx2.h"
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#define TINYLLM_INTEGERS "matmul/integer/i8mm.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#define TINYLLM_INTEGERS "matmul/integer/neon.h"
#endif

namespace tinyllm::TINYLLM_TIER {

// Codes in a word.
template <int Bits>
inline constexpr int kCodes = 32 / Bits;

#if defined(TINYLLM_INTEGERS)

// Words of x that are multiplied with a word of codes.
template <int Bits>
inline constexpr int kPlanes = 16 / Bits;

// For each word of x its number, of those of 2 W that go with W / kPlanes words of codes.
template <int Bits>
constexpr int word_of(int lane) {
  return lane / kPlanes<Bits> * kCodes<Bits>;
}

// The `Byte`th numbers of the W words of x, of bytes of codes. Codes of 4 bits are unpacked to the
// even ones and the odd ones, each of which has a word of the high plane, and then of the low one.
template <int Bits, int Byte, int... Lanes>
inline Ints byte_numbers(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  constexpr int parts = 8 / Bits;
  return __builtin_shufflevector(a, b, (word_of<Bits>(Lanes) + Byte * parts + Lanes % parts)...);
}

template <int Bits, int... Lanes>
constexpr Ints is_high(std::integer_sequence<int, Lanes...>) {
  return Ints{(Lanes % kPlanes<Bits> < kPlanes<Bits> / 2 ? -1 : 0)...};
}

// 2 W numbers as W words of two planes of bytes.
template <int Bits, int... Bytes>
inline Words planes_of(Ints a, Ints b, std::integer_sequence<int, Bytes...>) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  constexpr Ints high_plane = is_high<Bits>(lanes);
  const auto byte = [&](Ints numbers) {
    const Ints high = (numbers + 64) >> 7;
    return std::bit_cast<Words>((high_plane ? high : numbers - (high << 7)) & 255);
  };
  return ((byte(byte_numbers<Bits, Bytes>(a, b, lanes)) << 8 * Bytes) | ...);
}

template <int Bits>
inline void put_byte_planes(Ints a, Ints b, int8_t* to) {
  const Words words = planes_of<Bits>(a, b, std::make_integer_sequence<int, 4>{});
  std::memcpy(to, &words, sizeof words);
}

#endif

}  // namespace tinyllm::TINYLLM_TIER

#if defined(TINYLLM_INTEGERS)
#include TINYLLM_INTEGERS
#endif
