// Panels of w for AVX512_BF16: W rows of w as pairs of bfloat16, a lane for each row. The first pairs
// of all rows are side by side, then the second pairs, and so on.
//
// Interleaved codes have this order already: a word of codes of each row becomes a few vectors of
// pairs. Rows of other weights are rounded one by one and transposed.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "ceil_div.h"
#include "isa/transpose.h"
#include "matmul/bfloat16/round.h"
#include "matmul/integer/words.h"
#include "matmul/interleave.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kChunk = 2 * W;  // columns of a cache line in bfloat16

// Pairs of numbers in a row. A last number without a neighbor is a pair with zero.
inline int64_t row_pairs(int columns) { return (columns + 1) / 2; }

// Code `index` of each word, as a float.
template <Codes C>
inline Floats code_as_float(Words word, int index) {
  const Words code = word >> static_cast<uint32_t>(kBits<C> * index);
  if constexpr (C == Codes::e2m1) return e2m1(code);
  if constexpr (C == Codes::uint4) {
    constexpr Floats kNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return look_up(kNumbers, code);
  }
  return to_floats(code & ((1u << kBits<C>)-1));
}

// Rounds two numbers of each lane to a pair.
inline Words rounded_pairs(Floats first, Floats second) {
  using Indices [[gnu::vector_size(sizeof(Words))]] = uint16_t;
  constexpr Indices kInterleaved = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return bit_cast<Words>(_mm512_permutexvar_epi16(
      bit_cast<__m512i>(kInterleaved), bit_cast<__m512i>(to_bfloat16_pairs(first, second))));
}

// Pair `index` of a word of codes of each row.
template <Codes C>
inline Words pairs_of_word(Words word, int index, const Affines& affines) {
  const auto number = [&](int code) {
    return code_as_float<C>(word, code) * affines.scales + affines.biases;
  };
  return rounded_pairs(number(2 * index), number(2 * index + 1));
}

// Dequantizes and packs W interleaved rows of w from `first` on. T is the type of the scales.
// Memory would be idle while a panel is multiplied, so the codes `ahead` rows further are
// prefetched.
template <Codes C, typename T>
void pack_codes(const Weights& w, int64_t first, int64_t ahead, uint32_t* panel) {
  constexpr int kCodes = kCodesPerWord<kBits<C>>;  // in a word
  const int64_t row_words = w.columns / kCodes;
  const int group_words = w.group / kCodes;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * row_words;
  const RowAffines<T> affines(w, first);
  for (int64_t g = 0; g < w.columns / w.group; ++g) {
    const Affines group = affines[g];
    for (int i = 0; i < group_words; ++i, codes += W) {
      __builtin_prefetch(codes + ahead * row_words, 0, 2);  // to the second-level cache
      Words word;
      std::memcpy(&word, codes, sizeof word);
#pragma GCC unroll 4
      for (int pair = 0; pair < kCodes / 2; ++pair, panel += W) {
        const Words pairs = pairs_of_word<C>(word, pair, group);
        std::memcpy(panel, &pairs, sizeof pairs);
      }
    }
  }
}

// Numbers from one row of rounded numbers to the next: whole chunks, and one more, because rows of 2 KB
// would share a set of the first-level cache.
inline int64_t rounded_stride(int columns) { return ceil_div(columns, kChunk) * kChunk + kChunk; }

// Row n of w in bfloat16, in whole chunks. Rows of dense bfloat16 in whole chunks stay where they are.
// Others are written to `memory`, of `rounded_stride` numbers, by way of one row of floats.
template <typename Format>
const uint16_t* rounded_row(const Weights& w, int64_t n, uint16_t* memory, float* floats) {
  if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
    const auto* row = reinterpret_cast<const uint16_t*>(Format::row(w, n));
    if (w.columns % kChunk == 0) return row;
    std::memcpy(memory, row, w.columns * sizeof *row);
  } else {
    round_row<Format>(w, n, memory, floats);
  }
  std::fill(memory + w.columns, memory + rounded_stride(w.columns), uint16_t{0});
  return memory;
}

// Dequantizes and packs rows `first` to `first + rows` of w, at most W, and prefetches the rows
// `ahead` rows further. The last row is repeated for missing ones. `memory` has W rounded rows, and
// one row of floats.
template <typename Format>
void pack_rows(const Weights& w, int64_t first, int64_t rows, int64_t ahead, uint32_t* panel,
               float* memory) {
  const int64_t stride = rounded_stride(w.columns);
  const auto address = [&](int64_t row) {
    return reinterpret_cast<const char*>(Format::row(w, row));
  };
  const uint16_t* from[W];
  for (int64_t n = 0; n < W; ++n) {
    const int64_t row = first + std::min(n, rows - 1);
    const char *next = address(row + ahead), *end = address(row + ahead + 1);
    for (; next < end; next += 64) __builtin_prefetch(next, 0, 2);
    auto* rounded = reinterpret_cast<uint16_t*>(memory) + n * stride;
    from[n] = rounded_row<Format>(w, row, rounded, memory + W * stride / 2);
  }
  const int64_t pairs = row_pairs(w.columns);
  for (int64_t p = 0; p < pairs; p += W) {
    Words square[W];
    for (int64_t n = 0; n < W; ++n) std::memcpy(&square[n], from[n] + 2 * p, sizeof square[n]);
    transpose(square);
    std::memcpy(panel + p * W, square, std::min<int64_t>(pairs - p, W) * sizeof square[0]);
  }
}

// Floats of scratch memory for `pack_panel`.
inline int64_t packing_floats(const Weights& w) {
  return supports_integers(w) ? RowSizes(w).floats(W)
                              : W * rounded_stride(w.columns) / 2 + w.columns + W;
}

// Dequantizes and packs rows `first` to `first + rows` of w, at most W, to row_pairs(w.columns)
// vectors. The rows that are packed next are `ahead` rows further.
inline void pack_panel(const Weights& w, int64_t first, int64_t rows, int64_t ahead,
                       uint32_t* panel, float* memory) {
  if (!supports_integers(w)) {
    return with_format(
        w, [&]<typename Format>() { pack_rows<Format>(w, first, rows, ahead, panel, memory); });
  }
  const Weights codes = w.interleaved ? w : interleave_rows(w, first, rows, memory);
  if (!w.interleaved) ahead = 0;
  with_codes(codes, [&]<Codes C, typename T>() { pack_codes<C, T>(codes, first, ahead, panel); });
}

}  // namespace tinyllm::TINYLLM_ISA
