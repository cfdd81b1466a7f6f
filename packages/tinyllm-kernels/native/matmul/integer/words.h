// Words of codes times x in integers: the interface that each instruction set implements.
//
// W rows of w are multiplied at once, a lane each, and 32 bits of codes of each row at a time: the
// interleaved layout of matmul/interleave.h. x is quantized to 15 bits
// (matmul/integer/quantize_x.h) and takes two bytes for each number. The file of an instruction set
// has, or on x86-64 includes from matmul/integer/bytes.h:
//
//   kGemvTokens     rows of x that are multiplied by a word of codes at once
//   kCodeOffset     the number that is subtracted from the integers of codes. Bytes of NEON are
//                   signed. On x86-64 they are unsigned, so numbers of E2M1 have an offset of -12.
//   store_integers  stores 2 W numbers of x in the order that `CodeWords` reads
//   CodeWords       a word of codes of each of W rows, unpacked
//   IntegerSums     sums of products with one row of x, one sum for each of W rows
//
// and for x in int8 (matmul/integer/int8_gemv.h):
//
//   kInt8GemvTokens    rows of x that are multiplied by a word of codes at once
//   kWordsPerInt16Sum  words of codes whose products are added up in 16 bits; 1 if none are
//   CodeBytes          a word of codes of each of W rows, as bytes
//   Int8Sums           sums of products with one row of x in int8, one sum for each of W rows
//
// Instructions that multiply bytes read x as two planes of signed bytes, x = 128 high + low. AVX2
// and AVX-512 without VNNI multiply numbers of 16 bits.
//
// No sum overflows: a group has at most 128 codes, so its sum is at most 128 * 255 * 16256 < 2^30.
#pragma once

#include <cstring>
#include <utility>

#include "isa/tile_registers.h"
#include "isa/vectors.h"
#include "matmul/integer/codes.h"
#include "types.h"

// Defined if an instruction of x86-64 adds products of bytes to sums of 32 bits.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define TINYLLM_VNNI
#endif

// The file of the instruction set. Undefined if there are no integer kernels.
#if defined(TINYLLM_VNNI)
#define TINYLLM_INTEGERS "matmul/integer/vnni.h"
#elif defined(__AVX2__)
#define TINYLLM_INTEGERS "matmul/integer/avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#define TINYLLM_INTEGERS "matmul/integer/neon.h"
#endif

// Defined if matmul/integer/gemm.h multiplies many rows of x in 15 bits.
#if defined(TINYLLM_INTEGERS) && defined(__x86_64__)
#define TINYLLM_INTEGER_GEMM
#endif

// Defined if matmul/integer/gemm.h multiplies many rows of x in int8: with vectors of AVX2.
#if defined(__AVX2__) && !defined(__AVX512F__)
#define TINYLLM_INT8_GEMM
#endif

namespace tinyllm::TINYLLM_ISA {

// True if w can be multiplied in integers. A word of codes of 4 bits has 8 columns, and rows are
// interleaved W words at a time.
inline bool supports_integers([[maybe_unused]] const Weights& w) {
#if defined(TINYLLM_INTEGERS)
  const bool is_affine = w.mode == Mode::affine && (w.bits == 4 || w.bits == 8);
  const bool is_e2m1 = w.mode == Mode::mxfp4 || w.mode == Mode::nvfp4;
  return ((is_affine && w.type != Type::float32) || is_e2m1) &&
         w.columns % (W * kCodesPerWord<4>) == 0;
#else
  return false;
#endif
}

// True if codes of so many bits are multiplied by x in int8.
#if defined(__AVX2__) && !defined(TINYLLM_VNNI)
template <int Bits>
inline constexpr bool kHasInt8Products = Bits == 4;  // see avx2.h
#else
template <int Bits>
inline constexpr bool kHasInt8Products = true;
#endif

// True if products of integers with w quantize x to int8.
inline bool uses_int8_activations(const Weights& w) {
  if (w.mode == Mode::nvfp4 || (w.bits == 8 && !kHasInt8Products<8>)) return false;
  return w.int8_activations && supports_integers(w);
}

#if defined(TINYLLM_INTEGERS)

// Words of x that are multiplied by a word of codes: two bytes for each code.
template <int Bits>
inline constexpr int kXWords = 16 / Bits;

// The functions below turn 2 W numbers, vectors `a` and `b`, into W words of x. Each lane of the
// result is a word of x. kXWords consecutive words belong to one word of codes.

// The first of the numbers that belong to the same word of codes as word `lane` of x.
template <int Bits>
constexpr int first_number(int lane) {
  return lane / kXWords<Bits> * kCodesPerWord<Bits>;
}

// The numbers whose bytes are byte `Byte` of each word of x. A byte of codes of 4 bits has an even
// and an odd code, which are unpacked to different words. So the words of x are: even numbers and
// odd numbers of the high plane, then even and odd numbers of the low plane. With codes of 8 bits
// there is one word for each plane.
template <int Bits, int Byte, int... Lanes>
inline Ints byte_numbers(Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  constexpr int codes = 8 / Bits;  // in a byte
  return __builtin_shufflevector(
      a, b, (first_number<Bits>(Lanes) + Byte * codes + Lanes % codes)...);
}

// A mask of the words of the high plane.
template <int Bits, int... Lanes>
constexpr Ints high_plane_mask(std::integer_sequence<int, Lanes...>) {
  return Ints{(Lanes % kXWords<Bits> < kXWords<Bits> / 2 ? -1 : 0)...};
}

// 2 W numbers as W words of both planes.
template <int Bits, int... Bytes>
inline Words plane_words(Ints a, Ints b, std::integer_sequence<int, Bytes...>) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  constexpr Ints is_high = high_plane_mask<Bits>(lanes);
  const auto plane_byte = [&](Ints numbers) {
    const Ints high = (numbers + 64) >> 7;  // rounded, so that `low` is from -64 to 63
    return bit_cast<Words>((is_high ? high : numbers - (high << 7)) & 255);
  };
  return ((plane_byte(byte_numbers<Bits, Bytes>(a, b, lanes)) << 8 * Bytes) | ...);
}

template <int Bits>
inline void store_byte_planes(Ints a, Ints b, int8_t* to) {
  const Words words = plane_words<Bits>(a, b, std::make_integer_sequence<int, 4>{});
  std::memcpy(to, &words, sizeof words);
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
