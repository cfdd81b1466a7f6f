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

namespace tinyllm::TINYLLM_ISA {

// Vectors of tokens in a tile.
inline constexpr int kTileVectors = kIntegerTile / W;

// Rows of w whose sums stay in registers. With two vectors of tokens the sums take W registers.
inline constexpr int kIntegerMicroRows = W / 2;

// Columns that are multiplied at once. These columns of a tile of x and of W rows of w stay in the
// first-level cache.
inline constexpr int kBlockColumns = 4096 / W;

// A block: some groups of W interleaved rows of w, packed as pairs of 16 bits. A row of each array
// has W numbers, one for each row of w.
struct IntegerBlock {
  // `memory` has `floats(w)` floats.
  IntegerBlock(const Weights& w, float* memory)
      : pairs(reinterpret_cast<uint32_t*>(memory)),
        scales(memory + kBlockColumns / 2 * W),
        biases(scales + groups_of_block(w) * W) {}

  static int groups_of_block(const Weights& w) { return kBlockColumns / w.group; }
  static int64_t floats(const Weights& w) {
    return (kBlockColumns / 2 + 2 * groups_of_block(w)) * W;
  }

  // Packs groups `first` to `last` of the rows from `row` on.
  template <Codes C, typename T>
  void pack(const Weights& w, int64_t row, int64_t first, int64_t last) {
    const int64_t words = w.columns / kCodesPerWord<kBits<C>>;
    const int64_t group_words = w.group / kCodesPerWord<kBits<C>>;
    const auto* codes = static_cast<const uint32_t*>(w.data) + row * words + first * group_words * W;
    uint32_t* to = pairs;
    for (int64_t i = 0; i < (last - first) * group_words; ++i, codes += W) {
      const CodePairs<C> unpacked(codes);
      // In a loop that is not unrolled, GCC would store the pairs and copy them in halves.
#pragma GCC unroll 4
      for (int n = 0; n < kXWords<kBits<C>>; ++n, to += W) {
        std::memcpy(to, &unpacked.pairs[n], sizeof(Words));
      }
    }
    const RowAffines<T> affines(w, row);
    for (int64_t g = first; g < last; ++g) {
      const auto [scale, bias] = affines_of_integers<C>(affines[g], kCodeOffset<C>);
      store(scales + (g - first) * W, scale);
      store(biases + (g - first) * W, bias);
    }
  }

  uint32_t* pairs;
  float *scales, *biases;
};

// A tile of tokens of x: kIntegerTile tokens side by side.
struct IntegerTile {
  const uint32_t* pairs;
  const float *scales, *group_sums;
};

// The micro-kernel: multiplies kIntegerMicroRows rows of a block, from `row` on, by a tile of
// tokens. Adds to `sums`, which has kIntegerTile numbers for each row of w.
inline void integer_micro_kernel(const IntegerBlock& block, IntegerTile tile, int row,
                                 int64_t groups, int group_pairs, float* sums) {
  constexpr int V = kTileVectors;
  const uint32_t *w = block.pairs + row, *x = tile.pairs;
  for (int64_t g = 0; g < groups; ++g) {
    Ints products[kIntegerMicroRows][V] = {};
#pragma GCC unroll 4
    for (int p = 0; p < group_pairs; ++p, w += W, x += kIntegerTile) {
      Words tokens[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) std::memcpy(&tokens[v], x + v * W, sizeof tokens[v]);
#pragma GCC unroll 8
      for (int n = 0; n < kIntegerMicroRows; ++n) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
          products[n][v] = add_products(products[n][v], tokens[v], Words{} + w[n]);
        }
      }
    }
    const float *scales = block.scales + g * W + row, *biases = block.biases + g * W + row;
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const int64_t index = g * kIntegerTile + v * W;
      const Floats x_scales = load(tile.scales + index), x_sums = load(tile.group_sums + index);
#pragma GCC unroll 8
      for (int n = 0; n < kIntegerMicroRows; ++n) {
        float* at = sums + n * kIntegerTile + v * W;
        Floats total = load(at);
        total += __builtin_convertvector(products[n][v], Floats) * (x_scales * scales[n]);
        total += x_sums * biases[n];
        store(at, total);
      }
    }
  }
}

// Memory of a part: a block of w, the sums of W rows and of the tokens, and W interleaved rows if w is
// plain.
struct IntegerScratch {
  IntegerScratch(const Weights& w, int64_t tokens, float* memory)
      : block(w, memory),
        sums(memory + IntegerBlock::floats(w)),
        interleaved(sums + tiled(tokens) * W) {}

  // Floats without the interleaved rows.
  static int64_t floats(const Weights& w, int64_t tokens) {
    return IntegerBlock::floats(w) + tiled(tokens) * W;
  }
  static int64_t tiled(int64_t tokens) { return ceil_div(tokens, kIntegerTile) * kIntegerTile; }

  IntegerBlock block;
  float *sums, *interleaved;
};

// Multiplies W interleaved rows of w from `first` on by the tokens of a part.
template <Codes C, typename T>
void multiply_integer_panel(const LinearTask& t, const LinearRange& range, int64_t first,
                            const Weights& w, IntegerScratch& scratch) {
  const int64_t groups = w.columns / w.group, block_groups = IntegerBlock::groups_of_block(w);
  const int64_t tokens = range.last_token - range.first_token;
  std::fill_n(scratch.sums, IntegerScratch::tiled(tokens) * W, 0.0f);
  for (int64_t g = 0; g < groups; g += block_groups) {
    const int64_t end = std::min(g + block_groups, groups);
    scratch.block.template pack<C, T>(w, first, g, end);
    for (int64_t m = range.first_token; m < range.last_token; m += kIntegerTile) {
      const IntegerTile tile{
          .pairs = reinterpret_cast<const uint32_t*>(t.x_integers) + m * (w.columns / 2) +
                   g * w.group / 2 * kIntegerTile,
          .scales = t.x_scales + m * groups + g * kIntegerTile,
          .group_sums = t.x_group_sums + m * groups + g * kIntegerTile,
      };
      for (int row = 0; row < W; row += kIntegerMicroRows) {
        integer_micro_kernel(scratch.block, tile, row, end - g, w.group / 2,
                             scratch.sums + (m - range.first_token) * W + row * kIntegerTile);
      }
    }
  }
  const int64_t rows = std::min<int64_t>(W, range.last_row - first);
  with_type(t.type, [&]<typename Y>(Y*) {
    for (int64_t m = range.first_token; m < range.last_token; m += kIntegerTile) {
      const int64_t end = std::min<int64_t>(m + kIntegerTile, range.last_token);
      store_transposed<Y>(t, m, end, first, rows, scratch.sums + (m - range.first_token) * W,
                          kIntegerTile);
    }
  });
}

// Computes a part, whose tokens are whole tiles except the last.
template <Codes C, typename T>
void integer_gemm(const LinearTask& t, const LinearRange& range, float* memory) {
  IntegerScratch scratch(*t.w, t.part_tokens, memory);
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t rows = std::min<int64_t>(W, range.last_row - first);
    const Weights w =
        t.w->interleaved ? *t.w : interleave_rows(*t.w, first, rows, scratch.interleaved);
    multiply_integer_panel<C, T>(t, range, first, w, scratch);
  }
}

}  // namespace tinyllm::TINYLLM_ISA

#endif
