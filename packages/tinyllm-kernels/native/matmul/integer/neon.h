// Integer products of NEON, with `dotprod` or with `i8mm`. Both multiply signed bytes.
//
// W = 8 rows of w are two registers of four 32-bit words: rows 0-3 and rows 4-7.
#pragma once

#include <arm_neon.h>

#include "matmul/integer/words.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kGemvTokens = 4, kInt8GemvTokens = 8;

// Codes of 8 bits become signed bytes by subtracting 128.
template <Codes C>
inline constexpr float kCodeOffset = C == Codes::uint8 ? 128 : 0;

template <int Bits>
inline void store_integers(Ints a, Ints b, int8_t* to) {
  store_byte_planes<Bits>(a, b, to);
}

// A word of codes of each row as signed bytes.
template <Codes C>
struct CodeBytes {
  explicit CodeBytes(const uint32_t* from) {
    uint8x16_t codes[2];
    std::memcpy(codes, from, sizeof codes);
    for (int i = 0; i < 2; ++i) {
      if constexpr (C == Codes::uint8) {
        bytes[0][i] = vreinterpretq_s8_u8(veorq_u8(codes[i], vdupq_n_u8(128)));
      } else {
        bytes[0][i] = to_integers(vandq_u8(codes[i], vdupq_n_u8(15)));
        bytes[1][i] = to_integers(vshrq_n_u8(codes[i], 4));
      }
    }
  }

  int8x16_t bytes[8 / kBits<C>][2];  // with 4 bits the even codes, then the odd codes

 private:
  static int8x16_t to_integers(uint8x16_t codes) {
    return C == Codes::e2m1 ? vqtbl1q_s8(vld1q_s8(kDoubledE2m1), codes)
                            : vreinterpretq_s8_u8(codes);
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)

// One instruction of `i8mm` multiplies two rows of 8 bytes with two rows of 8 bytes and adds up all
// four dot products. The two rows of x are the planes of one token, so a row of w is multiplied by
// both planes at once.

struct IntegerSums {
  // 128 high + low.
  Floats to_floats() const {
    float32x4_t floats[2];
    for (int i = 0; i < 2; ++i) {
      const int32x4_t first = pairs[2 * i], second = pairs[2 * i + 1];
      const int32x4_t high = vuzp1q_s32(first, second), low = vuzp2q_s32(first, second);
      floats[i] = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high, 7), low));
    }
    return bit_cast<Floats>(floats);
  }

  int32x4_t pairs[4]{};  // of two rows each: high and low sum of one row, then of the next
};

template <Codes C>
class CodeWords {
 public:
  explicit CodeWords(const uint32_t* from) {
    const CodeBytes<C> codes(from);
    // Bytes of 8 bits are a row twice: once for each plane.
    constexpr int second = kBits<C> == 4;
    for (int i = 0; i < 2; ++i) set_rows(i, codes.bytes[0][i], codes.bytes[second][i]);
  }

  // Adds the products with the kXWords words of x that belong to these codes: first the words of
  // the high plane, then the words of the low plane.
  void multiply_add(const int8_t* x, IntegerSums& sums) const {
    for (int i = 0; i < 4; ++i) {
      if constexpr (kBits<C> == 4) {
        sums.pairs[i] = vmmlaq_s32(sums.pairs[i], pairs_[i], vld1q_s8(x));
      } else {
        const int8x8_t planes = vld1_s8(x);
        sums.pairs[i] = vdotq_s32(sums.pairs[i], pairs_[i], vcombine_s8(planes, planes));
      }
    }
  }

 private:
  // Rows 4 i to 4 i + 3: of each row four bytes of `first`, then four bytes of `second`.
  void set_rows(int i, int8x16_t first, int8x16_t second) {
    const int32x4_t a = vreinterpretq_s32_s8(first), b = vreinterpretq_s32_s8(second);
    pairs_[2 * i] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
    pairs_[2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
  }

  int8x16_t pairs_[4];  // of two rows each
};

#else

// One instruction of `dotprod` multiplies 16 bytes of codes, four of each row, by four bytes of x
// and adds the products to four sums.

struct IntegerSums {
  // 128 high + low.
  Floats to_floats() const {
    float32x4_t floats[2];
    for (int i = 0; i < 2; ++i) {
      floats[i] = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(high[i], 7), low[i]));
    }
    return bit_cast<Floats>(floats);
  }

  int32x4_t high[2]{}, low[2]{};  // one sum for each plane of x
};

template <Codes C>
class CodeWords : private CodeBytes<C> {
 public:
  using CodeBytes<C>::CodeBytes;

  // Adds the products with the kXWords words of x that belong to these codes: first the words of
  // the high plane, then the words of the low plane.
  void multiply_add(const int8_t* x, IntegerSums& sums) const {
    const auto& bytes = this->bytes;
    for (int i = 0; i < 2; ++i) {
      int32x4_t& high = sums.high[i];
      int32x4_t& low = sums.low[i];
      if constexpr (kBits<C> == 4) {
        const int8x16_t words = vld1q_s8(x);
        high = vdotq_laneq_s32(high, bytes[0][i], words, 0);
        high = vdotq_laneq_s32(high, bytes[1][i], words, 1);
        low = vdotq_laneq_s32(low, bytes[0][i], words, 2);
        low = vdotq_laneq_s32(low, bytes[1][i], words, 3);
      } else {
        const int8x8_t words = vld1_s8(x);
        high = vdotq_lane_s32(high, bytes[0][i], words, 0);
        low = vdotq_lane_s32(low, bytes[0][i], words, 1);
      }
    }
  }
};

#endif

template <Codes C>
inline constexpr int kWordsPerInt16Sum = 1;

// Sums of products with a row of x in int8.
struct Int8Sums {
  // Adds the products of a vector of codes with a word of x.
  void multiply_add(const int8x16_t (&codes)[2], const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, sizeof word);
    const int8x16_t bytes = vreinterpretq_s8_s32(vdupq_n_s32(word));
    for (int i = 0; i < 2; ++i) sums[i] = vdotq_s32(sums[i], codes[i], bytes);
  }
  void widen() {}

  Floats to_floats() const {
    const float32x4_t floats[2] = {vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1])};
    return bit_cast<Floats>(floats);
  }

  int32x4_t sums[2]{};
};

}  // namespace tinyllm::TINYLLM_ISA
