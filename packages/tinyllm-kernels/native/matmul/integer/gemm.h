// A prompt times codes in integers of 16 bits.
//
// x is scale * q in each group, as in matmul/integer/gemv.h, and q as well as codes go in whole. Lanes are
// tokens: of a tile all first pairs lie side by side, then all second ones, and a pair of w goes to
// all lanes. What a group adds up to is exact, and becomes a float once.
#pragma once

#include "matmul/integer/gemv.h"

#if defined(TINYLLM_INTEGERS) && defined(__x86_64__)
#define TINYLLM_INTEGER_TILES
#include "matmul/integer/pairs.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kIntegerTile = 2 * W;  // tokens
inline constexpr int kTogether = W / 2;     // rows of w whose sums stay in registers: 8, or 16 vectors
inline constexpr int kMostPairs = 64;       // of a group

// Packs up to a tile of tokens of x `M K`. What is missing of a tile may be anything: each lane is a
// token of its own, and nobody reads that of one that is missing.
template <int Bits>
void pack_integer_tile(const float* x, int64_t tokens, int columns, int group, const Planes& to) {
  uint32_t* pairs = reinterpret_cast<uint32_t*>(to.numbers);
  for (int g = 0; g < columns / group; ++g) {
    for (int64_t i = 0; i < tokens; ++i) {
      const float* numbers = x + i * columns + g * group;
      const int64_t at = g * kIntegerTile + i;
      uint32_t own[kMostPairs];
      to.scales[at] = to_integers(numbers, group, [&](Ints a, Ints b, int first) {
        put_pairs<Bits>(a, b, own + first / 2);
      });
      group_sums(numbers, 1, group, to.sums + at);
      for (int p = 0; p < group / 2; ++p) pairs[(g * group / 2 + p) * kIntegerTile + i] = own[p];
    }
  }
}

// W rows of interleaved w from `first` on, unpacked: of all rows the first pairs, then the second.
template <int Bits>
void unpack_pairs(const Weights& w, int64_t first, uint32_t* panel) {
  const int64_t words = w.columns / kCodes<Bits>;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * words;
  for (int64_t i = 0; i < words; ++i, codes += W) {
    for (const Words& part : CodePairs<Bits>(codes).parts) {
      std::memcpy(panel, &part, sizeof part);
      panel += W;
    }
  }
}

// Some rows of w, and a tile of x.
template <typename T>
struct IntegerOperands {
  const uint32_t *w, *x;
  const T *w_scales, *w_biases;
  const float *x_scales, *x_sums;
  int64_t groups;
  int pairs;  // of a group
};

// kTogether rows times X vectors of tokens: all sums of a group stay in registers.
template <int X, typename T>
void multiply_integer_tile(const IntegerOperands<T>& of, float* out) {
  Floats total[kTogether][X] = {};
  const uint32_t *w = of.w, *x = of.x;
  for (int64_t g = 0; g < of.groups; ++g) {
    Ints sums[kTogether][X] = {};
    for (int p = 0; p < of.pairs; ++p, w += W, x += kIntegerTile) {
      Words tokens[X];
#pragma GCC unroll 2
      for (int i = 0; i < X; ++i) std::memcpy(&tokens[i], x + i * W, sizeof tokens[i]);
#pragma GCC unroll 8
      for (int n = 0; n < kTogether; ++n) {
#pragma GCC unroll 2
        for (int i = 0; i < X; ++i) {
          sums[n][i] = add_products(sums[n][i], tokens[i], Words{} + w[n]);
        }
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < kTogether; ++n) {
      const float scale = to_float(of.w_scales[g * W + n]), bias = to_float(of.w_biases[g * W + n]);
#pragma GCC unroll 2
      for (int i = 0; i < X; ++i) {
        const int64_t at = g * kIntegerTile + i * W;
        total[n][i] += __builtin_convertvector(sums[n][i], Floats) * (load(of.x_scales + at) * scale);
        total[n][i] += load(of.x_sums + at) * bias;
      }
    }
  }
  for (int n = 0; n < kTogether; ++n) {
    std::memcpy(out + n * kIntegerTile, total[n], sizeof total[n]);
  }
}

// A part: rows of w times its tokens, which are whole tiles but for the last.
template <int Bits, typename T>
void multiply_integer_block(const LinearTask& t, const LinearRange& range, int64_t first,
                            const Weights& w, uint32_t* panel) {
  const int64_t rows = std::min<int64_t>(W, range.last_row - first), groups = w.columns / w.group;
  unpack_pairs<Bits>(w, first, panel);
  alignas(64) float sums[W * kIntegerTile];
  for (int64_t m = range.first_token; m < range.last_token; m += kIntegerTile) {
    const int64_t end = std::min<int64_t>(m + kIntegerTile, range.last_token);
    for (int64_t n = 0; n < rows; n += kTogether) {
      const IntegerOperands<T> operands{
          .w = panel + n,
          .x = reinterpret_cast<const uint32_t*>(t.planes) + m * (w.columns / 2),
          .w_scales = static_cast<const T*>(w.scales) + first * groups + n,
          .w_biases = static_cast<const T*>(w.biases) + first * groups + n,
          .x_scales = t.plane_scales + m * groups,
          .x_sums = t.sums + m * groups,
          .groups = groups,
          .pairs = w.group / 2,
      };
      const auto multiply = end - m > W ? multiply_integer_tile<2, T> : multiply_integer_tile<1, T>;
      multiply(operands, sums + n * kIntegerTile);
    }
    with_type(t.type, [&]<typename Y>(Y*) {
      put_squares<Y>(t, m, end, first, rows, sums, kIntegerTile);
    });
  }
}

template <int Bits>
void multiply_integer_tiles(const LinearTask& t, const LinearRange& range, float* scratch) {
  uint32_t* panel = reinterpret_cast<uint32_t*>(scratch);
  float* room = scratch + t.w->columns / 2 * W;
  with_type(t.w->type, [&]<typename T>(T*) {
    for (int64_t first = range.first_row; first < range.last_row; first += W) {
      const int64_t rows = std::min<int64_t>(W, range.last_row - first);
      const Weights w = t.w->interleaved ? *t.w : interleaved_block(*t.w, first, rows, room);
      multiply_integer_block<Bits, T>(t, range, first, w, panel);
    }
  });
}

}  // namespace tinyllm::TINYLLM_TIER

#endif
