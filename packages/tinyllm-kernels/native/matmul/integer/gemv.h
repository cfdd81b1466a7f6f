// Rows of codes times rows of x in integers, for instruction sets that add up their products.
//
// W rows of w go together, a lane each, and a word of codes at a time (matmul/interleave.h): 32 bits
// of each row, which are multiplied with the same few numbers of x. What a group adds up to in
// integers is exact, is in its row's lane already, and becomes a float once.
//
// x has more than 8 bits. In each group it is scale * q with q of 15 bits, which is x to 15 bits of
// the largest number of the group: see matmul/integer/words.h. That is less than the rounding of a result
// to 16 bits.
#pragma once

#include <algorithm>
#include <bit>

#include "isa/unroll.h"
#include "matmul/integer/words.h"
#include "matmul/linear.h"
#include "isa/load_store.h"
#include "matmul/store.h"
#include "matmul/interleave.h"
#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_INTEGERS)

// Bytes of codes that are fetched ahead: a page, since a processor's own prefetchers end with theirs,
// and rows of x, which are read side by side with the codes, keep them busy.
inline constexpr int kAheadOfRows = 4096;

// Whether w may be multiplied in integers. Rows are interleaved a vector at a time, scales as halves.
inline bool has_integers(const Weights& w) {
  return w.mode == Mode::affine && (w.bits == 4 || w.bits == 8) && w.type != Type::float32 &&
         w.columns % (W * kCodes<4>) == 0;
}

// A group of x in integers of 15 bits, which go to `put(a, b, i)` 2 W at a time, those from the i-th
// on; and their scale.
template <typename Put>
float to_integers(const float* x, int group, Put put) {
  Floats sizes = {};
  for (int i = 0; i < group; i += W) sizes = max(load(x + i), max(-load(x + i), sizes));
  const float largest = largest_lane(sizes);
  const float inverse = largest > 0 ? 16256 / largest : 0;
  for (int i = 0; i < group; i += 2 * W) {
    // 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
    const Ints a = std::bit_cast<Ints>(load(x + i) * inverse + 12582912.0f) - 0x4b400000;
    const Ints b = std::bit_cast<Ints>(load(x + i + W) * inverse + 12582912.0f) - 0x4b400000;
    put(a, b, i);
  }
  return largest / 16256;
}

// Rows of x as words of codes want them.
template <int Bits>
void to_planes(const float* x, int64_t count, int group, const Planes& to) {
  group_sums(x, count / group, group, to.sums);
  for (int64_t g = 0; g < count / group; ++g, x += group) {
    to.scales[g] = to_integers(x, group, [&](Ints a, Ints b, int i) {
      put_planes<Bits>(a, b, to.numbers + 2 * (g * group + i));
    });
  }
}

// W rows of interleaved w from `first` on, of which `rows` count, times M rows of x from `token` on.
// Every sum is the same whatever M is.
template <int Bits, typename T, int M>
void multiply_in_integers(const LinearTask& t, const Weights& w, int64_t token, int64_t first,
                          int64_t rows) {
  const int64_t columns = w.columns, groups = columns / w.group;
  const int words = w.group / kCodes<Bits>;  // of a group
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * (columns / kCodes<Bits>);
  const auto* scales = static_cast<const T*>(w.scales) + first * groups;
  const auto* biases = static_cast<const T*>(w.biases) + first * groups;
  const int8_t* x = t.planes + token * columns * 2;
  const float* x_scales = t.plane_scales + token * groups;
  const float* x_sums = t.sums + token * groups;
  Floats found[M] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Sums sums[M] = {};
    for (int i = 0; i < words; ++i, codes += W, x += 2 * kCodes<Bits>) {
      __builtin_prefetch(reinterpret_cast<const char*>(codes) + kAheadOfRows);
      const IntegerWord<Bits> word(codes);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) word.multiply(x + m * columns * 2, sums[m]);
    }
    const Floats scale = load_as_floats(scales + g * W);
    const Floats bias = load_as_floats(biases + g * W) + scale * kMissing<Bits>;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      found[m] += sums[m].total() * (scale * x_scales[m * groups + g]);
      found[m] += bias * x_sums[m * groups + g];
    }
  }
  for (int m = 0; m < M; ++m) {
    alignas(64) float values[W];
    store(values, found[m]);
    put_some(t, token + m, first, values, rows);
  }
}

// A part: rows of w times its rows of x. Some rows of w at a time, which are still near when the
// next tokens want them.
template <int Bits>
void multiply_integer_rows(const LinearTask& t, const LinearRange& range, float* scratch) {
  with_type(t.w->type, [&]<typename T>(T*) {
    for (int64_t first = range.first_row; first < range.last_row; first += W) {
      const int64_t rows = std::min<int64_t>(W, range.last_row - first);
      const Weights w = t.w->interleaved ? *t.w : interleaved_block(*t.w, first, rows, scratch);
      for (int64_t m = range.first_token; m < range.last_token; m += kIntegerRows) {
        with_constant<kIntegerRows>(range.last_token - m, [&]<int M>() {
          multiply_in_integers<Bits, T, M>(t, w, m, first, rows);
        });
      }
    }
  });
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
