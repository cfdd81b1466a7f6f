// Prefill in bfloat16 with AVX512_BF16. For AMX, matmul/bfloat16/amx_gemm.h takes the place of this
// file, for NEON matmul/bfloat16/neon_gemm.h.
//
// One instruction multiplies 16 pairs with 16 pairs and adds both products of a pair to a float:
// twice the work of a multiplication of floats. Lanes are rows of w: a panel has the first pairs of
// W rows side by side, then their second pairs, and so on. A pair of x is a 32-bit number that is
// broadcast to all lanes, so the sums of a token are a part of its row of y.
//
// x is bfloat16 already. Rows of x are some KB apart, and a cache has few lines for such addresses.
// So x is copied a cache line at a time: the first lines of kMicroTokens tokens, then their second
// lines, and so on.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "ceil_div.h"
#include "matmul/bfloat16/avx512_panel.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kMicroTokens = 8;  // tokens whose sums stay in registers
// Panels of W rows of w whose sums stay in registers. Their results for a token fill a cache line.
inline constexpr int kMicroPanels = 2;
static_assert(kTokenTile % kMicroTokens == 0);

// Copies tiles `first` to `last` of kTokenTile rows of x `M K`. The last lines are padded with zeros.
// Missing tokens of the last tile are left as they are, because their sums are not stored.
inline void pack_tokens(const uint16_t* x, int64_t rows, int columns, int64_t first, int64_t last,
                        uint32_t* packed) {
  const int64_t chunks = ceil_div(columns, kChunk);
  const int64_t end = std::min<int64_t>(last * kTokenTile, rows);
  for (int64_t m = first * kTokenTile; m < end; ++m) {
    uint32_t* to = packed + m / kMicroTokens * kMicroTokens * chunks * W + m % kMicroTokens * W;
    for (int64_t k = 0; k < columns; k += kChunk, to += kMicroTokens * W) {
      Words line = {};
      if (k + kChunk <= columns) {
        std::memcpy(&line, x + m * columns + k, sizeof line);
      } else {
        std::memcpy(&line, x + m * columns + k, (columns - k) * sizeof *x);
      }
      std::memcpy(to, &line, sizeof line);
    }
  }
}

// The packed tokens from token m on, where a group of kMicroTokens begins.
inline const uint32_t* packed_tokens(const LinearTask& t, int64_t m) {
  return t.x_packed + m * packed_pairs(t.w->columns);
}

inline Floats add_products(Floats sums, uint32_t x, Words w) {
  return bit_cast<Floats>(_mm512_dpbf16_ps(bit_cast<__m512>(sums), bit_cast<__m512bh>(Words{} + x),
                                           bit_cast<__m512bh>(w)));
}

// The micro-tile: sums of M tokens and V panels, `stride` words apart. The order of a sum is
// that of the pairs.
template <int M, int V>
struct MicroTile {
  MicroTile(const uint32_t* tokens, const uint32_t* panels, int64_t stride, int64_t pairs) {
    for (int64_t p = 0; p < pairs; ++p, panels += W) {
      const uint32_t* x = tokens + p / W * W * kMicroTokens + p % W;
      Words w[V];
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) std::memcpy(&w[v], panels + v * stride, sizeof w[v]);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const uint32_t pair = x[m * W];
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) sums[m][v] = add_products(sums[m][v], pair, w[v]);
      }
    }
  }

  // Stores the first `count` tokens from `token` on, and rows `first` to `last` of w.
  void store_to(const LinearTask& t, int64_t token, int64_t count, int64_t first,
                int64_t last) const {
    const bool is_whole = last - first == V * W;
    for (int64_t m = 0; m < count; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        if (is_whole) {
          store_vector_as<BFloat16>(t, token + m, first + v * W, sums[m][v]);
        } else {
          alignas(64) float values[W];
          store(values, sums[m][v]);
          const int64_t row = first + v * W;
          store_results(t, token + m, row, values, std::min<int64_t>(W, last - row));
        }
      }
    }
  }

  Floats sums[M][V] = {};
};

// Computes a part of y from V panels.
template <int V>
void multiply_panels(const LinearTask& t, const LinearRange& range, const uint32_t* panels,
                     int64_t stride) {
  const int64_t pairs = row_pairs(t.w->columns);
  const auto multiply = [&]<int M>(int64_t token) {
    const MicroTile<M, V> sums(packed_tokens(t, token), panels, stride, pairs);
    const int64_t count = std::min<int64_t>(M, range.last_token - token);
    sums.store_to(t, token, count, range.first_row, range.last_row);
  };
  for (int64_t m = range.first_token; m < range.last_token; m += kMicroTokens) {
    if (range.last_token - m <= kMicroTokens / 2) {
      multiply.template operator()<kMicroTokens / 2>(m);
    } else {
      multiply.template operator()<kMicroTokens>(m);
    }
  }
}

// Computes a part of y: tokens of x times at most kMicroPanels * W rows of w. `scratch` has the
// panels, then the memory of `pack_panel`.
inline void bfloat16_gemm(const LinearTask& t, const LinearRange& range, float* scratch) {
  const Weights& w = *t.w;
  const int64_t stride = row_pairs(w.columns) * W;
  auto* panels = reinterpret_cast<uint32_t*>(scratch);
  float* memory = scratch + kMicroPanels * stride;
  const int64_t count = ceil_div(range.last_row - range.first_row, W);
  for (int64_t v = 0; v < count; ++v) {
    const int64_t first = range.first_row + v * W;
    const int64_t rows = std::min<int64_t>(range.last_row - first, W);
    pack_panel(w, first, rows, t.part_rows, panels + v * stride, memory);
  }
  const auto multiply = count == 1 ? multiply_panels<1> : multiply_panels<kMicroPanels>;
  multiply(t, range, panels, stride);
}

// Sets `part_rows` and `part_tokens`. If there are fewer panels than wanted parts, tokens are divided,
// too.
inline void plan_bfloat16(LinearTask& t, int64_t parts) {
  const int64_t panels = ceil_div(t.w->rows, W);
  t.part_rows = std::clamp<int64_t>(panels / parts, 1, kMicroPanels) * W;
  t.part_tokens = divided_tokens(t, parts);
}

// Floats of scratch memory for each thread.
inline int64_t bfloat16_scratch(const LinearTask& t) {
  return kMicroPanels * row_pairs(t.w->columns) * W + packing_floats(*t.w);
}

}  // namespace tinyllm::TINYLLM_ISA
