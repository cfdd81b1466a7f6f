// A row of codes times a few rows of x in integers, for instruction sets that add up their
// products.
//
// x has more than 8 bits. In each group it is scale * q with q of 15 bits, which is x to 15 bits of
// the largest number of the group: see integer_chunk.h. That is less than the rounding of a result
// to 16 bits, and the sums of integers are exact.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "constant.h"
#include "decode.h"
#include "integer_chunk.h"
#include "linear.h"
#include "numbers.h"
#include "put.h"
#include "sum_lanes.h"
#include "vectors.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_INTEGERS)

inline bool multiplies_in_integers(const Weights& w, Type type) {
  return type != Type::float32 && w.mode == Mode::affine && (w.bits == 4 || w.bits == 8) &&
         w.columns % kChunk<4> == 0;
}

// x as its chunks want it, and the scale of each group.
template <int Bits>
void to_planes(const float* x, int64_t count, int group, int8_t* planes, float* scales) {
  constexpr int chunk = kChunk<Bits>;
  for (int64_t g = 0; g < count / group; ++g, x += group) {
    Floats sizes = {};
    for (int i = 0; i < group; i += W) sizes = max(load(x + i), max(-load(x + i), sizes));
    const float largest = largest_lane(sizes);
    scales[g] = largest / 16256;
    const float inverse = largest > 0 ? 16256 / largest : 0;
    for (int i = 0; i < group; i += 2 * W) {
      // 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
      const Ints a = std::bit_cast<Ints>(load(x + i) * inverse + 12582912.0f) - 0x4b400000;
      const Ints b = std::bit_cast<Ints>(load(x + i + W) * inverse + 12582912.0f) - 0x4b400000;
      const int64_t k = g * group + i;
      put_pair<Bits>(static_cast<int>(k % chunk), a, b, planes + k / chunk * chunk * 2);
    }
  }
}

// Bytes of planes that have room beside some rows of w.
inline constexpr int64_t kNear = 24 << 10;

// Up to W rows of w from `first` on times M rows of x from `token` on. Every sum is the same whatever
// M is.
template <int Bits, typename T, int M>
void multiply_in_integers(const LinearTask& t, const Owners<Bits>& owners, int64_t token,
                          int64_t first, int64_t rows) {
  const Weights& w = *t.w;
  constexpr int chunk = kChunk<Bits>;
  const int shift = std::countr_zero(static_cast<unsigned>(w.group));  // divisions would take as long
  const int64_t columns = w.columns, row_bytes = columns * Bits / 8, groups = columns >> shift;
  const int64_t scales_of_w = w.rows * groups, scales_of_x = t.rows * groups + W;
  const int all = static_cast<int>(columns / chunk);
  Floats found[M][W] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t n = first + r;
    const uint8_t* row = static_cast<const uint8_t*>(w.data) + n * row_bytes;
    Floats total[M] = {};
    for (int c = 0; c < all; c += kChunks) {
      const int chunks = std::min(kChunks, all - c);
      const int64_t g = int64_t{c} * chunk >> shift;
      const int count = (chunks * chunk + w.group - 1) >> shift;
      const Floats of_w = some<T>(w.scales, n * groups + g, count, scales_of_w);
      Floats biases = some<T>(w.biases, n * groups + g, count, scales_of_w);
      if constexpr (Chunk<Bits>::kOffset != 0) biases += of_w * Chunk<Bits>::kOffset;
      Floats scales[M];
      for (int m = 0; m < M; ++m) {
        const int64_t at = (token + m) * groups + g;
        scales[m] = of_w * some<float>(t.plane_scales, at, count, scales_of_x);
        total[m] += biases * some<float>(t.sums, at, count, scales_of_x);
      }
#pragma GCC unroll 4
      for (int j = 0; j < kChunks; ++j) {
        if (j == chunks) break;
        const Chunk<Bits> codes(row + 4 * W * (c + j));
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const int8_t* planes = t.planes + ((token + m) * columns + (c + j) * chunk) * 2;
          total[m] += codes.sums(planes) * owners.spread(j, scales[m]);
        }
      }
    }
    for (int m = 0; m < M; ++m) found[m][r] = total[m];
  }
  for (int m = 0; m < M; ++m) {
    alignas(64) float sums[W];
    for (int r = 0; r < W; r += 4) {
      store_sums(found[m][r], found[m][r + 1], found[m][r + 2], found[m][r + 3], sums + r);
    }
    put_some(t, token + m, first, sums, rows);
  }
}

// A part: rows of w times its rows of x. Some rows of w at a time, which are still near when the
// next tokens want them.
template <int Bits>
void multiply_integer_rows(const LinearTask& t, const LinearRange& range) {
  const Owners<Bits> owners(t.w->group);
  // Their planes stay in the first-level cache while the rows of w go by.
  const int64_t tokens =
      kIntegerRows * 2 * t.w->columns <= kNear ? kIntegerRows : std::min(kIntegerRows, 4);
  with_type(t.w->type, [&]<typename T>(T*) {
    for (int64_t first = range.first_row; first < range.last_row; first += W) {
      const int64_t rows = std::min<int64_t>(W, range.last_row - first);
      for (int64_t m = range.first_token; m < range.last_token; m += tokens) {
        with_constant<kIntegerRows>(std::min(range.last_token - m, tokens), [&]<int M>() {
          multiply_in_integers<Bits, T, M>(t, owners, m, first, rows);
        });
      }
    }
  });
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
