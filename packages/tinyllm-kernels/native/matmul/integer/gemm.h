// Many rows of x in integers, on x86-64: two panels of W interleaved rows of w at once.
//
// A block is some columns of both panels. It is unpacked once for all rows of x of a part, and a
// word of x is broadcast once for both panels. Results stay in memory from one block to the next.
//
// x is in 15 bits, for prompts, or in int8. The sums of a group are those of gemv.h and of
// int8_gemv.h, and are added up in the same order.
#pragma once

#include "matmul/integer/int8_gemv.h"

#if defined(TINYLLM_INTEGER_GEMM)

#include "isa/with_constant.h"

namespace tinyllm::TINYLLM_ISA {

// Panels that are multiplied at once.
inline constexpr int kIntegerPanels = 2;

// Rows of x whose sums stay in registers, with those of two panels. VNNI needs more independent
// sums than AVX2, because its instruction adds to them and takes longer than an addition.
#if defined(TINYLLM_VNNI) && !defined(__AVX512F__)
inline constexpr int kIntegerMicroTokens = 6;
#else
inline constexpr int kIntegerMicroTokens = W / 2;
#endif

// Words of x that a block multiplies: 256 columns of x in 15 bits, or 512 in int8. They stay in the
// first-level cache, with the same columns of a tile of x.
inline constexpr int kBlockWords = 128;

// Products with x in 15 bits.
template <Codes C>
struct Int16Products {
  using Unpacked = CodePairs<C>;
  using Sums = PairSums;

  static constexpr int kWords = kXWords<kBits<C>>;  // words of x that belong to a word of codes
  static constexpr int kWordsPerSum = 1;  // words of codes that are multiplied before `widen`
};

#if defined(TINYLLM_INT8_GEMM)

// Products with x in int8.
template <Codes C>
struct Int8Products {
  using Unpacked = CodeBytes<C>;
  using Sums = Int8Sums;

  static constexpr int kWords = kInt8XWords<kBits<C>>;
  static constexpr int kWordsPerSum = kWordsPerInt16Sum<C>;
};

#endif

// Floats of memory for the results of a part.
inline int64_t integer_gemm_floats(const LinearTask& t) {
  return kIntegerPanels * W * t.part_tokens;
}

// Codes of consecutive panels, from some group on.
struct PanelCodes {
  const char* at;
  int64_t panel_bytes, group_bytes;

  // Prefetches the codes of a group of P panels.
  template <int P>
  void prefetch(int64_t group) const {
    for (int p = 0; p < P; ++p) {
      const char* from = at + p * panel_bytes + group * group_bytes;
      for (int64_t i = 0; i < group_bytes; i += 64) __builtin_prefetch(from + i);
    }
  }
};

// Some groups of P panels, unpacked.
template <typename Products, Codes C, int P>
struct CodeBlock {
  static constexpr int kWords = Products::kWords;
  static constexpr int kColumns = kBlockWords / kWords * kCodesPerWord<kBits<C>>;

  // Packs `count` groups from `group` on of the panels from row `first` on. `from` has their
  // codes. T is the type of the scales.
  template <typename T>
  void pack(const Weights& w, PanelCodes from, int64_t first, int64_t group, int64_t count) {
    groups = count;
    group_words = from.group_bytes / sizeof(Words);
    for (int p = 0; p < P; ++p) {
      const char* at = from.at + p * from.panel_bytes;
      for (int64_t i = 0; i < groups * group_words; ++i, at += sizeof(Words)) {
        const typename Products::Unpacked unpacked(reinterpret_cast<const uint32_t*>(at));
#pragma GCC unroll 4
        for (int v = 0; v < kWords; ++v) codes[i * kWords + v][p] = unpacked[v];
      }
      const RowAffines<T> panel(w, first + p * W);
      for (int64_t g = 0; g < groups; ++g) {
        affines[g][p] = affines_of_integers<C>(panel[group + g], kCodeOffset<C>);
      }
    }
  }

  // The micro-kernel: adds the products with M rows of x to `results`, which has P * W numbers for
  // each row. A tile of x has `tile` rows. Prefetches `next` unless it is null, a group at a time:
  // one burst would stall on memory.
  //
  // Not inlined, because GCC would keep the sums in memory, which takes 1.6 times as long.
  template <int M>
  [[gnu::noinline]] void micro_kernel(const int8_t* x, const float* scales, const float* group_sums,
                                      int64_t tile, float* results, const PanelCodes* next) const {
    constexpr int kStep = kWords * Products::kWordsPerSum;
    const int64_t stride = 4 * tile;  // bytes from a word to the next of the same row
    const auto* word = codes;
    for (int64_t g = 0; g < groups; ++g, scales += tile, group_sums += tile) {
      if (next) next->prefetch<P>(g);
      asm("" : "+r"(results));  // GCC would keep results in registers, and sums in memory
      typename Products::Sums sums[M][P];
      for (int64_t i = 0; i < group_words; i += Products::kWordsPerSum) {
#pragma GCC unroll 8
        for (int n = 0; n < kStep; ++n, ++word, x += stride) {
          Words panels[P];
#pragma GCC unroll 2
          for (int p = 0; p < P; ++p) {
            panels[p] = (*word)[p];
            asm("" : "+v"(panels[p]));  // GCC would read it again for each row of x
          }
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) sums[m][p].multiply_add(panels[p], x + 4 * m);
          }
        }
#pragma GCC unroll 8
        for (auto& of_row : sums) {
#pragma GCC unroll 2
          for (auto& each : of_row) each.widen();
        }
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
          float* at = results + (m * P + p) * W;
          Floats total = load(at);
          total += sums[m][p].to_floats() * (affines[g][p].scales * scales[m]);
          total += affines[g][p].biases * group_sums[m];
          store(at, total);
        }
      }
    }
  }

  int64_t groups, group_words;
  Words codes[kBlockWords][P];
  Affines affines[kColumns / 16][P];  // a group has at least 16 columns
};

// Multiplies P panels from row `first` on, of which `rows` rows exist, by the rows of x of a part.
template <typename Products, Codes C, typename T, int P>
void multiply_integer_panels(const LinearTask& t, const LinearRange& range, const Weights& w,
                             int64_t first, int64_t rows, float* results) {
  using Block = CodeBlock<Products, C, P>;
  constexpr int kNumberBytes = Products::kWords * kBits<C> / 8;  // of x
  const int64_t groups = w.columns / w.group, block_groups = Block::kColumns / w.group;
  const int64_t row_bytes = w.columns * kBits<C> / 8;
  PanelCodes codes{static_cast<const char*>(w.data) + first * row_bytes, W * row_bytes,
                   W * row_bytes / groups};
  std::fill_n(results, (range.last_token - range.first_token) * P * W, 0.0f);
  Block block;
  for (int64_t g = 0; g < groups; g += block_groups) {
    const int64_t count = std::min(block_groups, groups - g);
    block.template pack<T>(w, codes, first, g, count);
    codes.at += count * codes.group_bytes;
    PanelCodes next = codes;
    if (g + count == groups) next.at += (P - 1) * codes.panel_bytes;  // of the next panels
    const PanelCodes* prefetched = &next;
    float* tile_results = results;
    for (int64_t m = range.first_token; m < range.last_token; m += kXTile) {
      const int64_t tile = std::min<int64_t>(kXTile, t.tokens - m), at = m * groups + g * tile;
      const int8_t* x = t.x_integers + at * w.group * kNumberBytes;
      const float *scales = t.x_scales + at, *group_sums = t.x_group_sums + at;
      for (int64_t row = 0; row < tile; row += kIntegerMicroTokens, prefetched = nullptr) {
        with_constant<kIntegerMicroTokens>(tile - row, [&]<int M>() {
          block.template micro_kernel<M>(x + 4 * row, scales + row, group_sums + row, tile,
                                         tile_results + row * P * W, prefetched);
        });
      }
      tile_results += tile * P * W;
    }
  }
  // The type is looked up once: for each vector, the lookup alone takes 4 percent of a prompt.
  with_type(t.type, [&]<typename Y>(Y*) {
    for (int64_t m = range.first_token; m < range.last_token; ++m) {
      for (int64_t n = 0; n < P * W; n += W, results += W) {
        if (rows - n < W) {
          store_results(t, m, first + n, results, rows - n);
        } else {
          store_vector_as<Y>(t, m, first + n, load(results));
        }
      }
    }
  });
}

// Computes a part. `scratch` has memory for P * W results of each row of x, and then for W
// interleaved rows, used if w is plain.
template <typename Products, Codes C, typename T>
void integer_gemm(const LinearTask& t, const LinearRange& range, float* scratch) {
  int64_t first = range.first_row;
  if (t.w->interleaved) {
    constexpr int kRows = kIntegerPanels * W;
    for (; first + kRows <= range.last_row; first += kRows) {
      multiply_integer_panels<Products, C, T, kIntegerPanels>(t, range, *t.w, first, kRows,
                                                              scratch);
    }
  }
  for (; first < range.last_row; first += W) {
    const int64_t rows = std::min<int64_t>(W, range.last_row - first);
    const Weights w = t.w->interleaved
                          ? *t.w
                          : interleave_rows(*t.w, first, rows, scratch + integer_gemm_floats(t));
    multiply_integer_panels<Products, C, T, 1>(t, range, w, first, rows, scratch);
  }
}

}  // namespace tinyllm::TINYLLM_ISA

#endif
