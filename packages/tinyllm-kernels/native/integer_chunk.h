// Codes times x in integers, a chunk of codes at a time: what a vector holds. Each instruction set
// has a file of its own for it, with the same four parts:
//
//   put_pair   where a chunk of x wants 2 W of its numbers
//   Chunk      unpacked codes, and the sums of their products with a chunk of x
//   Owners     which scale each of these sums has
//   some       a few scales, and zeros
//
// x has 15 bits. Instructions that multiply bytes get it as two planes of bytes, x = 128
// high + low, and AVX2, which has none of them, as numbers of 16 bits. No sum overflows: one lane
// adds up 32 bits of codes, 4 * 255 * 16256 at most, which is below 2^24 and exact as a float too.
#pragma once

#include "numbers.h"
#include "vectors.h"

#if defined(__AVX512VNNI__)
#define TINYLLM_INTEGERS "integers_vnni.h"
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define TINYLLM_INTEGERS "integers_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#define TINYLLM_INTEGERS "integers_neon.h"
#endif

namespace tinyllm::TINYLLM_TIER {

// Codes in a chunk.
template <int Bits>
inline constexpr int kChunk = 32 * W / Bits;

// Chunks whose scales are looked up together: with groups of 32 these are a vector.
inline constexpr int kChunks = 4;

#if defined(TINYLLM_INTEGERS)

// Every `Step`th lane of a and then b, from `First` on, as numbers of type To.
template <typename To, int First, int Step, int... Lanes>
inline void store_lanes(void* to, Ints a, Ints b, std::integer_sequence<int, Lanes...>) {
  using Narrow [[gnu::vector_size(sizeof(To) * sizeof...(Lanes))]] = To;
  const Narrow narrow = __builtin_convertvector(
      __builtin_shufflevector(a, b, (First + Step * Lanes)...), Narrow);
  std::memcpy(to, &narrow, sizeof narrow);
}

// Numbers `at` and on, 2 W of them, to planes of bytes in the order in which codes lie in a chunk:
// of 4 bits the even ones first, then the odd ones; all of the high plane, then the low one.
template <int Bits>
inline void put_planes(int at, Ints a, Ints b, int8_t* chunk) {
  constexpr auto lanes = std::make_integer_sequence<int, W>{};
  constexpr int step = 8 / Bits, second = Bits == 4 ? 1 : W;
  int8_t* to = chunk + at / step;
  const Ints high_a = (a + 64) >> 7, high_b = (b + 64) >> 7;
  const Ints low_a = a - (high_a << 7), low_b = b - (high_b << 7);
  int8_t* other = to + (Bits == 4 ? 4 * W : W);
  store_lanes<int8_t, 0, step>(to, high_a, high_b, lanes);
  store_lanes<int8_t, second, step>(other, high_a, high_b, lanes);
  store_lanes<int8_t, 0, step>(to + kChunk<Bits>, low_a, low_b, lanes);
  store_lanes<int8_t, second, step>(other + kChunk<Bits>, low_a, low_b, lanes);
}

#endif

}  // namespace tinyllm::TINYLLM_TIER

#if defined(TINYLLM_INTEGERS)
#include TINYLLM_INTEGERS
#endif
