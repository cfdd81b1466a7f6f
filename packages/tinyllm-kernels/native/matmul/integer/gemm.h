// Prefill in integers of 16 bits, on x86-64: W interleaved rows of w times tiles of tokens.
//
// Lanes are tokens. Codes and quantized x are pairs of 16-bit integers. A pair of w is broadcast to
// all lanes. The sum of a group is exact and is converted to a float once.
#pragma once

#include "matmul/integer/quantize_x.h"

#if defined(TINYLLM_INTEGER_GEMM)

#include "isa/load_store.h"
#include "matmul/interleave.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_TIER {

// Vectors of tokens in a tile.
inline constexpr int kTileVectors = kIntegerTile / W;

// Rows of w whose sums stay in registers. With two vectors of tokens the sums take W registers.
inline constexpr int kIntegerTileRows = W / 2;

// Unpacks W interleaved rows of w from `first` on: the first pairs of all rows, then the second
// pairs, and so on.
template <Codes C>
void unpack_pairs(const Weights& w, int64_t first, uint32_t* panel) {
  const int64_t words = w.columns / kCodesPerWord<kBits<C>>;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * words;
  for (int64_t i = 0; i < words; ++i, codes += W) {
    for (const Words& pair : CodePairs<C>(codes).pairs) {
      std::memcpy(panel, &pair, sizeof pair);
      panel += W;
    }
  }
}

// The operands of a tile of results: rows of w and a tile of tokens of x. T is the type of the
// scales.
template <typename T>
struct IntegerOperands {
  const uint32_t* w;                     // pairs, W rows side by side
  const uint32_t* x;                     // pairs, kIntegerTile tokens side by side
  RowAffines<T> affines;                 // of W rows
  int64_t first;                         // row of these W rows
  const float *x_scales, *x_group_sums;  // kIntegerTile tokens side by side
  int64_t groups;
  int pairs;  // of a group
};

// Multiplies kIntegerTileRows rows by a tile of tokens. `out` has kIntegerTile results for each row.
template <Codes C, typename T>
void multiply_integer_tile(const IntegerOperands<T>& of, float* out) {
  constexpr int V = kTileVectors;
  Floats total[kIntegerTileRows][V] = {};
  const uint32_t *w = of.w + of.first, *x = of.x;
  for (int64_t g = 0; g < of.groups; ++g) {
    Ints sums[kIntegerTileRows][V] = {};
    for (int p = 0; p < of.pairs; ++p, w += W, x += kIntegerTile) {
      Words tokens[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) std::memcpy(&tokens[v], x + v * W, sizeof tokens[v]);
#pragma GCC unroll 8
      for (int n = 0; n < kIntegerTileRows; ++n) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          sums[n][v] = add_products(sums[n][v], tokens[v], Words{} + w[n]);
        }
      }
    }
    const auto [scales, biases] = of_integers<C>(of.affines[g], kCodeOffset<C>);
    alignas(64) float scale[W], bias[W];
    store(scale, scales);
    store(bias, biases);
#pragma GCC unroll 8
    for (int n = 0; n < kIntegerTileRows; ++n) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const int64_t index = g * kIntegerTile + v * W;
        const Floats products = __builtin_convertvector(sums[n][v], Floats);
        total[n][v] += products * (load(of.x_scales + index) * scale[of.first + n]);
        total[n][v] += load(of.x_group_sums + index) * bias[of.first + n];
      }
    }
  }
  for (int n = 0; n < kIntegerTileRows; ++n) {
    std::memcpy(out + n * kIntegerTile, total[n], sizeof total[n]);
  }
}

// Multiplies W interleaved rows of w from `first` on by the tokens of a part. `panel` has memory
// for their pairs.
template <Codes C, typename T>
void multiply_integer_panel(const LinearTask& t, const LinearRange& range, int64_t first,
                            const Weights& w, uint32_t* panel) {
  const int64_t rows = std::min<int64_t>(W, range.last_row - first), groups = w.columns / w.group;
  const RowAffines<T> affines(w, first);
  unpack_pairs<C>(w, first, panel);
  alignas(64) float sums[W * kIntegerTile];
  for (int64_t m = range.first_token; m < range.last_token; m += kIntegerTile) {
    const int64_t end = std::min<int64_t>(m + kIntegerTile, range.last_token);
    for (int64_t n = 0; n < rows; n += kIntegerTileRows) {
      const IntegerOperands<T> operands{
          .w = panel,
          .x = reinterpret_cast<const uint32_t*>(t.x_integers) + m * (w.columns / 2),
          .affines = affines,
          .first = n,
          .x_scales = t.x_scales + m * groups,
          .x_group_sums = t.x_group_sums + m * groups,
          .groups = groups,
          .pairs = w.group / 2,
      };
      multiply_integer_tile<C>(operands, sums + n * kIntegerTile);
    }
    with_type(t.type, [&]<typename Y>(Y*) {
      store_transposed<Y>(t, m, end, first, rows, sums, kIntegerTile);
    });
  }
}

// Computes a part, whose tokens are whole tiles except the last. `scratch` has the pairs of W rows,
// then memory for W interleaved rows, used if w is plain.
template <Codes C, typename T>
void multiply_integer_tiles(const LinearTask& t, const LinearRange& range, float* scratch) {
  uint32_t* panel = reinterpret_cast<uint32_t*>(scratch);
  float* interleaved = scratch + t.w->columns / 2 * W;
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t rows = std::min<int64_t>(W, range.last_row - first);
    const Weights w = t.w->interleaved ? *t.w : interleave_rows(*t.w, first, rows, interleaved);
    multiply_integer_panel<C, T>(t, range, first, w, panel);
  }
}

}  // namespace tinyllm::TINYLLM_TIER

#endif
