// x quantized to integers of 15 bits, in the layouts of integer GEMV and GEMM.
//
// In each group x is scale * q with |q| <= 16256 = 127 * 128, so that both bytes of q are signed
// bytes. The error is at most half of 1/16256 of the largest number of the group. That is less than
// the rounding of a result to 16 bits.
//
// The bias of a group of w is multiplied by the sum of the rounded numbers. A weight, scale * code
// + bias, then meets one error of x, and a weight of zero none. With the sum of the exact numbers
// the code alone would meet it, and codes are larger than weights, since they are not centered on
// zero.
#pragma once

#include <algorithm>

#include "isa/lane_sums.h"
#include "isa/tile_registers.h"
#include "matmul/integer/words.h"
#include "matmul/linear.h"

#if defined(TINYLLM_INTEGERS)
#include TINYLLM_INTEGERS
#endif

#if defined(TINYLLM_INTEGER_GEMM)
#include "matmul/integer/pairs.h"
#endif

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_INTEGERS)

inline constexpr float kLargestInteger = 16256;

// The magnitude of the largest number of a group.
inline float largest_magnitude(const float* x, int group) {
  Floats magnitudes = {};
  for (int i = 0; i < group; i += W) {
    magnitudes = max(load(x + i), max(-load(x + i), magnitudes));
  }
  return largest_lane(magnitudes);
}

// The factor that makes `steps` of the largest magnitude; zero if it could be infinite.
inline float inverse_scale(float largest, float steps) {
  return largest > 1e-34f ? steps / largest : 0;
}

// The integers next to x times `inverse`.
inline Ints quantized(Floats x, float inverse) {
  return bit_cast<Ints>(x * inverse + kRounder) - __builtin_bit_cast(int32_t, kRounder);
}

// Quantizes a group to integers of up to `steps`. Calls `store(a, b, i)` with 2 W integers, those
// of numbers i to i + 2 W - 1. If a group has W numbers, `b` is zero. Writes the scale, and the sum
// of the rounded numbers. A number that is infinite or NaN makes both NaN.
template <typename Store>
void quantize_group(const float* x, int group, float steps, float& scale, float& group_sum,
                    Store store) {
  const float largest = largest_magnitude(x, group), inverse = inverse_scale(largest, steps);
  Floats total = {};
  Ints integers = {};
  for (int i = 0; i < group; i += 2 * W) {
    const bool is_half = group == W;
    const Floats a = load(x + i), b = is_half ? Floats{} : load(x + i + W);
    const Ints qa = quantized(a, inverse), qb = is_half ? Ints{} : quantized(b, inverse);
    total += a + b;
    integers += qa + qb;
    store(qa, qb, i);
  }
  scale = largest / steps + 0 * sum(total);
  group_sum = scale * sum(__builtin_convertvector(integers, Floats));
}

// Quantizes a range of x, row by row: the layout of matmul/integer/gemv.h.
template <int Bits>
void quantize_for_gemv(const XRange& range, const Weights& w, const QuantizedX& to) {
  const int64_t groups = w.columns / w.group;
  const float* x = range.x;
  for (int64_t token = range.first_token; token < range.last_token; ++token, x += range.stride) {
    int64_t at = token * groups + range.first_group;
    const float* group = x;
    for (int64_t g = range.first_group; g < range.last_group; ++g, ++at, group += w.group) {
      int8_t* integers = to.integers + 2 * at * w.group;
      const auto store = [&](Ints a, Ints b, int i) {
        if (w.group >= 2 * W) return store_integers<Bits>(a, b, integers + 2 * i);
        int8_t both[4 * W];
        store_integers<Bits>(a, b, both);
        std::memcpy(integers, both, 2 * W);
      };
      quantize_group(group, w.group, kLargestInteger, to.scales[at], to.group_sums[at], store);
    }
  }
}

inline constexpr int kXTile = 16;  // rows of x that are packed together, at most
static_assert(kTokenTile % kXTile == 0);

#if defined(TINYLLM_INTEGER_GEMM)

// Quantizes and packs the groups of a range for a tile of its tokens, whose first one is x: see
// `quantize_for_gemm`. The first pairs of all tokens are side by side, then the second
// pairs, and so on. Scales and sums of a group are side by side, too.
template <int Bits>
void quantize_tile_for_gemm(const float* x, int64_t tokens, const XRange& range, int group,
                            const QuantizedX& to) {
  constexpr int kMaxPairs = 64;  // of a group
  uint32_t* pairs = reinterpret_cast<uint32_t*>(to.integers);
  for (int64_t g = range.first_group; g < range.last_group; ++g, x += group) {
    uint32_t* group_pairs = pairs + g * group / 2 * tokens;
    for (int64_t i = 0; i < tokens; ++i) {
      const float* numbers = x + i * range.stride;
      const int64_t index = g * tokens + i;
      uint32_t token_pairs[kMaxPairs];
      const auto store = [&](Ints a, Ints b, int first) {
        store_pairs<Bits>(a, b, token_pairs + first / 2);
      };
      quantize_group(numbers, group, kLargestInteger, to.scales[index], to.group_sums[index],
                     store);
      for (int p = 0; p < group / 2; ++p) group_pairs[p * tokens + i] = token_pairs[p];
    }
  }
}

// Quantizes a range of x, which begins with a tile of tokens: the layout of matmul/integer/gemm.h.
template <int Bits>
void quantize_for_gemm(const XRange& range, const Weights& w, const QuantizedX& to) {
  const float* x = range.x;
  for (int64_t token = range.first_token; token < range.last_token; token += kXTile) {
    const int64_t tokens = std::min<int64_t>(range.last_token - token, kXTile);
    const int64_t group = token * (w.columns / w.group);
    quantize_tile_for_gemm<Bits>(x, tokens, range, w.group,
                                 {to.integers + 2 * token * w.columns, to.scales + group,
                                  to.group_sums + group, to.tokens - token});
    x += kXTile * range.stride;
  }
}

#endif

#if defined(TINYLLM_AMX)

inline constexpr int kAmxTokens = 16;  // tokens that are packed together

// Columns of a tile of w: a group has one tile, or two if it has 128 columns.
constexpr int group_tile_columns(int group) { return std::min(group, 64); }

// The bytes of W numbers of 8 bits, in the order of the codes of W columns in a tile. GCC 12 converts
// and shuffles bytes lane by lane, so the instructions are named.
template <int Bits>
inline __m128i code_order(Ints numbers) {
  const __m128i bytes = _mm512_cvtepi32_epi8(bit_cast<__m512i>(numbers));
  if constexpr (Bits == 8) return bytes;
  // Of each word of codes the even columns, then the odd columns.
  return _mm_shuffle_epi8(bytes,
                          _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
}

// Stores W numbers as bytes.
template <int Bits>
inline void store_plane(Ints numbers, int8_t* to) {
  const __m128i bytes = code_order<Bits>(numbers);
  std::memcpy(to, &bytes, sizeof bytes);
}

// Stores W numbers as bytes of both planes.
template <int Bits>
inline void store_planes(Ints numbers, int8_t* high_plane, int8_t* low_plane) {
  const Ints high = (numbers + 64) >> 7;
  store_plane<Bits>(high, high_plane);
  store_plane<Bits>(numbers - (high << 7), low_plane);
}

// Writes the largest magnitude and the sum of each of four groups. The four lane sums are computed
// together: the steps of a single one wait for each other.
inline void scan_four_groups(const float* x, int group, float* largest, float* sums) {
  Floats magnitudes[4] = {}, totals[4] = {};
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n, x += group) {
    for (int i = 0; i < group; i += W) {
      const Floats numbers = load(x + i);
      magnitudes[n] = max(numbers, max(-numbers, magnitudes[n]));
      totals[n] += numbers;
    }
  }
  store_sums(totals[0], totals[1], totals[2], totals[3], sums);
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) largest[n] = largest_lane(magnitudes[n]);
}

// Quantizes the groups of a range of row `token` of x: see `quantize_for_amx`.
// Up to kAmxTokens tokens are packed together. For each tile of w, a token has a row of each plane,
// and the tokens are side by side. So are the scales and the sums of a group.
template <int Bits, int Planes>
void quantize_token_for_amx(const float* x, int64_t token, const XRange& range, const Weights& w,
                            const QuantizedX& to) {
  constexpr int kGroups = 4;  // at a time
  constexpr float kLargest = Planes == 1 ? 127 : kLargestInteger;
  const int64_t first = token / kAmxTokens * kAmxTokens, index = token - first;
  const int64_t tokens = std::min<int64_t>(kAmxTokens, to.tokens - first);
  const int64_t groups = w.columns / w.group, columns = group_tile_columns(w.group);
  const int64_t first_number = first * w.columns + range.first_group * w.group * tokens;
  int8_t* row = to.integers + Planes * (first_number + index * columns);
  for (int64_t g = range.first_group; g < range.last_group; g += kGroups) {
    float largest[kGroups], sums[kGroups];
    const int count = static_cast<int>(std::min<int64_t>(range.last_group - g, kGroups));
    if (count == kGroups) {
      scan_four_groups(x, w.group, largest, sums);
    } else {
      group_sums(x, count, w.group, sums);
      for (int n = 0; n < count; ++n) largest[n] = largest_magnitude(x + n * w.group, w.group);
    }
    for (int n = 0; n < count; ++n) {
      const int64_t at = first * groups + (g + n) * tokens + index;
      const float inverse = inverse_scale(largest[n], kLargest);
      Ints integers = {};
      for (int i = 0; i < w.group; i += columns, row += Planes * tokens * columns) {
        for (int64_t c = 0; c < columns; c += W, x += W) {
          const Ints numbers = quantized(load(x), inverse);
          integers += numbers;
          if constexpr (Planes == 1) {
            store_plane<Bits>(numbers, row + c);
          } else {
            store_planes<Bits>(numbers, row + c, row + columns + c);
          }
        }
      }
      to.scales[at] = largest[n] / kLargest + 0 * sums[n];  // as in `quantize_group`
      to.group_sums[at] = to.scales[at] * sum(__builtin_convertvector(integers, Floats));
    }
  }
}

// Quantizes a range of x to the layout of matmul/integer/amx_gemm.h. Two planes, high and low, have
// the numbers of `quantize_for_gemv`. One plane has those of matmul/integer/int8_gemv.h, and if
// x has a single row it also has that layout.
template <int Bits, int Planes>
void quantize_for_amx(const XRange& range, const Weights& w, const QuantizedX& to) {
  const float* x = range.x;
  for (int64_t token = range.first_token; token < range.last_token; ++token, x += range.stride) {
    quantize_token_for_amx<Bits, Planes>(x, token, range, w, to);
  }
}

#endif

#endif

}  // namespace tinyllm::TINYLLM_ISA
