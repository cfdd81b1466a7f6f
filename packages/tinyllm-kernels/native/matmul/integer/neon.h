// NEON multiplies 16 signed bytes with 16 signed bytes and adds the products up by fours, in one
// instruction, where it has `dotprod`.
#pragma once

#include <arm_neon.h>

#include <bit>

#include "matmul/integer/signed_planes.h"

namespace tinyllm::TINYLLM_TIER {

struct Sums {
  Floats total() const {
    float32x4_t floats[2];
    for (int half = 0; half < 2; ++half) {
      floats[half] = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high[half], 7), low[half]));
    }
    return std::bit_cast<Floats>(floats);
  }

  int32x4_t high[2]{}, low[2]{};
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
        parts_[0][half] = vreinterpretq_s8_u8(vandq_u8(codes[half], vdupq_n_u8(15)));
        parts_[1][half] = vreinterpretq_s8_u8(vshrq_n_u8(codes[half], 4));
      } else {
        parts_[0][half] = vreinterpretq_s8_u8(veorq_u8(codes[half], vdupq_n_u8(128)));
      }
    }
  }

  // Times their numbers of x.
  void multiply(const int8_t* x, Sums& sums) const {
    for (int half = 0; half < 2; ++half) {
      int32x4_t& high = sums.high[half];
      int32x4_t& low = sums.low[half];
      if constexpr (Bits == 4) {
        const int8x16_t words = vld1q_s8(x);
        high = vdotq_laneq_s32(high, parts_[0][half], words, 0);
        high = vdotq_laneq_s32(high, parts_[1][half], words, 1);
        low = vdotq_laneq_s32(low, parts_[0][half], words, 2);
        low = vdotq_laneq_s32(low, parts_[1][half], words, 3);
      } else {
        const int8x8_t words = vld1_s8(x);
        high = vdotq_lane_s32(high, parts_[0][half], words, 0);
        low = vdotq_lane_s32(low, parts_[0][half], words, 1);
      }
    }
  }

 private:
  int8x16_t parts_[8 / Bits][2];
};

}  // namespace tinyllm::TINYLLM_TIER
