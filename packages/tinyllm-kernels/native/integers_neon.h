// NEON multiplies 16 signed bytes with 16 signed bytes and adds the products up by fours, in one
// instruction, where it has `dotprod`.
#pragma once

#include <arm_neon.h>

#include <bit>

#include "integer_chunk.h"
#include "some_scales.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr bool kIntegerPrompts = true;  // half as many multiplications as with floats
inline constexpr int kIntegerRows = 4;         // of x that are multiplied with a chunk together

template <int Bits>
inline void put_pair(int at, Ints a, Ints b, int8_t* chunk) {
  put_planes<Bits>(at, a, b, chunk);
}

template <int Bits>
struct Chunk {
  // What is missing from every code: those of 8 bits are signed by taking away 128.
  static constexpr float kOffset = Bits == 8 ? 128 : 0;

  explicit Chunk(const uint8_t* from) {
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t codes = vld1q_u8(from + 16 * half);
      if constexpr (Bits == 4) {
        parts[half] = vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(15)));
        parts[2 + half] = vreinterpretq_s8_u8(vshrq_n_u8(codes, 4));
      } else {
        parts[half] = vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(128)));
      }
    }
  }

  // Times their numbers of x: W sums, each over the codes of four bytes.
  Floats sums(const int8_t* planes) const {
    int32x4_t sums[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (int plane = 0; plane < 2; ++plane) {
      for (int half = 0; half < 2; ++half) {
        if (plane == 1) sums[half] = vshlq_n_s32(sums[half], 7);
        for (int i = half; i < 16 / Bits; i += 2) {
          sums[half] = vdotq_s32(sums[half], parts[i], vld1q_s8(planes + 16 * i));
        }
      }
      planes += kChunk<Bits>;
    }
    const float32x4_t floats[2] = {vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1])};
    return std::bit_cast<Floats>(floats);
  }

  int8x16_t parts[16 / Bits];
};

// Four sums are 16 codes or 32, which are in one group.
template <int Bits>
class Owners {
 public:
  explicit Owners(int group) : shift_(std::countr_zero(static_cast<unsigned>(group))) {}

  // The scale of each sum of a chunk.
  Floats spread(int chunk, Floats scales) const {
    const float first = scales[chunk * kChunk<Bits> >> shift_];
    const float second = scales[(2 * chunk + 1) * kChunk<Bits> / 2 >> shift_];
    return Floats{first, first, first, first, second, second, second, second};
  }

 private:
  int shift_;
};

}  // namespace tinyllm::TINYLLM_TIER
