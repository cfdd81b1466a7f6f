// NEON with `i8mm` multiplies two rows of 8 signed bytes with two rows of 8 and gets all four sums,
// in one instruction. The rows of x are the two planes of one token: a row of w meets both at once.
#pragma once

#include <arm_neon.h>

#include <bit>

#include "matmul/integer/signed_planes.h"

namespace tinyllm::TINYLLM_TIER {

// Two rows of w to a register, each with its sum for the high plane and that for the low one.
struct Sums {
  Floats total() const {
    float32x4_t floats[2];
    for (int half = 0; half < 2; ++half) {
      const int32x4_t first = rows[2 * half], second = rows[2 * half + 1];
      const int32x4_t high = vuzp1q_s32(first, second), low = vuzp2q_s32(first, second);
      floats[half] = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 7), low));
    }
    return std::bit_cast<Floats>(floats);
  }

  int32x4_t rows[4]{};
};

template <int Bits>
class IntegerWord {
 public:
  explicit IntegerWord(const uint32_t* from) {
    Words word;
    std::memcpy(&word, from, sizeof word);
    uint8x16_t codes[2];
    std::memcpy(codes, &word, sizeof word);
    for (int half = 0; half < 2; ++half) {
      if constexpr (Bits == 4) {
        put_rows(half, vandq_u8(codes[half], vdupq_n_u8(15)), vshrq_n_u8(codes[half], 4));
      } else {
        const uint8x16_t without = veorq_u8(codes[half], vdupq_n_u8(128));
        put_rows(half, without, without);  // a row twice: once for each plane
      }
    }
  }

  // Times their numbers of x.
  void multiply(const int8_t* x, Sums& sums) const {
    for (int i = 0; i < 4; ++i) {
      if constexpr (Bits == 4) {
        sums.rows[i] = vmmlaq_s32(sums.rows[i], rows_[i], vld1q_s8(x));
      } else {
        const int8x8_t planes = vld1_s8(x);
        sums.rows[i] = vdotq_s32(sums.rows[i], rows_[i], vcombine_s8(planes, planes));
      }
    }
  }

 private:
  // Four rows, of each four bytes of `first` and then four of `second`.
  void put_rows(int half, uint8x16_t first, uint8x16_t second) {
    const uint32x4_t a = vreinterpretq_u32_u8(first), b = vreinterpretq_u32_u8(second);
    rows_[2 * half] = vreinterpretq_s8_u32(vzip1q_u32(a, b));
    rows_[2 * half + 1] = vreinterpretq_s8_u32(vzip2q_u32(a, b));
  }

  int8x16_t rows_[4];
};

}  // namespace tinyllm::TINYLLM_TIER
