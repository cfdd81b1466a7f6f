// x quantized to integers of 15 bits, in the layouts of integer GEMV and GEMM.
//
// In each group x is scale * q with |q| <= 16256 = 127 * 128, so that both bytes of q are signed
// bytes. The error is at most half of 1/16256 of the largest number of the group. That is less than
// the rounding of a result to 16 bits.
#pragma once

#include <algorithm>
#include <bit>

#include "isa/tile_registers.h"
#include "matmul/integer/words.h"
#include "matmul/linear.h"

#if defined(TINYLLM_INTEGERS)
#include TINYLLM_INTEGERS
#endif

#if defined(TINYLLM_INTEGERS) && defined(__x86_64__)
#define TINYLLM_INTEGER_GEMM
#include "matmul/integer/pairs.h"
#endif

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_INTEGERS)

// Quantizes a group. Calls `store(a, b, i)` with 2 W integers, those of numbers i to i + 2 W - 1.
// Returns the scale.
template <typename Store>
float quantize_group(const float* x, int group, Store store) {
  Floats magnitudes = {};
  for (int i = 0; i < group; i += W) {
    magnitudes = max(load(x + i), max(-load(x + i), magnitudes));
  }
  const float largest = largest_lane(magnitudes);
  const float inverse = largest > 0 ? 16256 / largest : 0;
  for (int i = 0; i < group; i += 2 * W) {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the lower bits of the sum.
    const Ints a = std::bit_cast<Ints>(load(x + i) * inverse + 12582912.0f) - 0x4b400000;
    const Ints b = std::bit_cast<Ints>(load(x + i + W) * inverse + 12582912.0f) - 0x4b400000;
    store(a, b, i);
  }
  return largest / 16256;
}

// Quantizes whole rows, `count` numbers, row by row: the layout of matmul/integer/gemv.h.
template <int Bits>
void quantize_rows(const float* x, int64_t count, int group, const QuantizedX& to) {
  group_sums(x, count / group, group, to.group_sums);
  for (int64_t g = 0; g < count / group; ++g, x += group) {
    to.scales[g] = quantize_group(x, group, [&](Ints a, Ints b, int i) {
      store_integers<Bits>(a, b, to.integers + 2 * (g * group + i));
    });
  }
}

#if defined(TINYLLM_INTEGER_GEMM)

inline constexpr int kIntegerTile = 2 * W;  // tokens that are packed together
static_assert(kTokenTile % kIntegerTile == 0);

// Quantizes and packs a tile of tokens of x `M K`: the layout of matmul/integer/gemm.h. The first
// pairs of all tokens are side by side, then the second pairs, and so on. Scales and sums of a
// group are side by side, too. Missing tokens of the last tile are left as they are, because each
// token has a lane of its own and the lanes of missing tokens are not stored.
template <int Bits>
void quantize_tile(const float* x, int64_t tokens, int columns, int group, const QuantizedX& to) {
  constexpr int kMaxPairs = 64;  // of a group
  uint32_t* pairs = reinterpret_cast<uint32_t*>(to.integers);
  for (int g = 0; g < columns / group; ++g) {
    uint32_t* group_pairs = pairs + g * group / 2 * kIntegerTile;
    for (int64_t i = 0; i < tokens; ++i) {
      const float* numbers = x + i * columns + g * group;
      const int64_t index = g * kIntegerTile + i;
      uint32_t token_pairs[kMaxPairs];
      to.scales[index] = quantize_group(numbers, group, [&](Ints a, Ints b, int first) {
        store_pairs<Bits>(a, b, token_pairs + first / 2);
      });
      group_sums(numbers, 1, group, to.group_sums + index);
      for (int p = 0; p < group / 2; ++p) group_pairs[p * kIntegerTile + i] = token_pairs[p];
    }
  }
}

#endif

#if defined(TINYLLM_TILES)

inline constexpr int kTileTokens = 16;  // tokens that are packed together for decode

// Columns of a tile of w: a group has one tile, or two if it has 128 columns.
constexpr int group_tile_columns(int group) { return std::min(group, 64); }

// Stores 2 W numbers as bytes of both planes, in the order of the codes of 2 W columns.
template <int Bits, int... Words8>
void store_planes(Ints a, Ints b, int8_t* high, int8_t* low,
                  std::integer_sequence<int, Words8...>) {
  constexpr int run = kXWords<Bits> / 2;  // consecutive words of a plane
  const Words words = plane_words<Bits>(a, b, std::make_integer_sequence<int, 4>{});
  using HalfWords [[gnu::vector_size(2 * W)]] = uint32_t;
  const HalfWords high_words =
      __builtin_shufflevector(words, words, (Words8 / run * 2 * run + Words8 % run)...);
  const HalfWords low_words =
      __builtin_shufflevector(words, words, (Words8 / run * 2 * run + Words8 % run + run)...);
  std::memcpy(high, &high_words, sizeof high_words);
  std::memcpy(low, &low_words, sizeof low_words);
}

// Quantizes a token of x `M K`: the layout of matmul/integer/amx.h. Up to kTileTokens tokens are
// packed together. For each tile of w, a token has a row of the high plane and a row of the low
// plane, and the tokens are side by side. So are the scales and the sums of a group.
template <int Bits>
void quantize_token(const float* x, int64_t token, const Weights& w, const QuantizedX& to) {
  const int64_t first = token / kTileTokens * kTileTokens, index = token - first;
  const int64_t tokens = std::min<int64_t>(kTileTokens, to.rows - first);
  const int64_t groups = w.columns / w.group, columns = group_tile_columns(w.group);
  int8_t* integers = to.integers + 2 * first * w.columns;
  for (int64_t g = 0; g < groups; ++g) {
    const float* numbers = x + token * w.columns + g * w.group;
    const int64_t at = first * groups + g * tokens + index;
    to.scales[at] = quantize_group(numbers, w.group, [&](Ints a, Ints b, int i) {
      const int64_t column = g * w.group + i;
      int8_t* high = integers + (column / columns * tokens + index) * 2 * columns + column % columns;
      store_planes<Bits>(a, b, high, high + columns, std::make_integer_sequence<int, W / 2>{});
    });
    group_sums(numbers, 1, w.group, to.group_sums + at);
  }
}

#endif

// True if products of bytes with AMX multiply M rows of this phase.
inline bool uses_byte_tiles([[maybe_unused]] Phase phase, [[maybe_unused]] int64_t rows) {
#if defined(TINYLLM_TILES)
  return phase == Phase::decode && rows > 1;
#else
  return false;
#endif
}

// True if integer GEMM multiplies rows of this phase, otherwise integer GEMV.
inline bool uses_integer_gemm([[maybe_unused]] Phase phase) {
#if defined(TINYLLM_INTEGER_GEMM)
  return phase == Phase::prefill;
#else
  return false;
#endif
}

inline QuantizedX from_row(const QuantizedX& x, const Weights& w, int64_t row) {
  const int64_t group = row * (w.columns / w.group);
  return {x.integers + 2 * row * w.columns, x.scales + group, x.group_sums + group, x.rows - row};
}

// Quantizes rows `first` to `last` of x `M K`. For GEMM `first` begins a tile of kTokenTile tokens.
template <int Bits>
void quantize_x(const float* x, [[maybe_unused]] Phase phase, const Weights& w, int64_t first,
                int64_t last, const QuantizedX& to) {
#if defined(TINYLLM_INTEGER_GEMM)
  for (; uses_integer_gemm(phase) && first < last; first += kIntegerTile) {
    const int64_t tokens = std::min<int64_t>(last - first, kIntegerTile);
    quantize_tile<Bits>(x + first * w.columns, tokens, w.columns, w.group, from_row(to, w, first));
  }
#endif
#if defined(TINYLLM_TILES)
  for (; uses_byte_tiles(phase, to.rows) && first < last; ++first) {
    quantize_token<Bits>(x, first, w, to);
  }
#endif
  if (first < last) {
    quantize_rows<Bits>(x + first * w.columns, (last - first) * w.columns, w.group,
                        from_row(to, w, first));
  }
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
