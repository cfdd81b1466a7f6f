// Prefill of few tokens in bfloat16, over interleaved rows of codes.
//
// Lanes are rows of w. A word of codes of each row becomes pairs of bfloat16 in registers, and the
// pairs of a token are broadcast to all lanes. No panel is written. The numbers and the order of each
// sum are those of avx512.h, so that the bits of a token do not depend on the number of tokens.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "matmul/bfloat16/avx512.h"
#include "matmul/formats.h"
#include "matmul/integer/words.h"
#include "matmul/store.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_TIER {

// Tokens whose sums stay in registers. Codes are unpacked again for more tokens, up to a packed tile.
inline constexpr int kFewTokens = 16;

inline bool uses_few_tokens(const Weights& w, int64_t rows) {
  return rows <= kTokenTile && w.interleaved == W && supports_integers(w);
}

// Code `index` of each word, as a float.
template <Codes C>
inline Floats code_as_float(Words word, int index) {
  const Words code = word >> static_cast<uint32_t>(kBits<C> * index);
  if constexpr (C == Codes::e2m1) return e2m1(code);
  return to_floats(code & ((1u << kBits<C>)-1));
}

// Rounds two numbers of each lane to a pair.
inline Words rounded_pairs(Floats first, Floats second) {
  using Indices [[gnu::vector_size(sizeof(Words))]] = uint16_t;
  constexpr Indices kInterleaved = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512bh both =
      _mm512_cvtne2ps_pbh(std::bit_cast<__m512>(second), std::bit_cast<__m512>(first));
  return std::bit_cast<Words>(_mm512_permutexvar_epi16(std::bit_cast<__m512i>(kInterleaved),
                                                       std::bit_cast<__m512i>(both)));
}

// Multiplies W rows of w from `first` on by M tokens from `token` on, of which some may not exist. T
// is the type of the scales.
template <Codes C, typename T, int M>
void multiply_few_tokens(const LinearTask& t, int64_t token, int64_t first) {
  const Weights& w = *t.w;
  constexpr int kCodes = kCodesPerWord<kBits<C>>;  // in a word
  const int64_t groups = w.columns / w.group;
  const int group_words = w.group / kCodes;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * (w.columns / kCodes);
  const RowAffines<T> affines(w, first);
  const uint32_t* tokens = t.x_packed + token;
  Floats total[M] = {};
  for (int64_t g = 0; g < groups; ++g) {
    const auto [scale, bias] = affines[g];
    for (int i = 0; i < group_words; ++i, codes += W) {
      __builtin_prefetch(reinterpret_cast<const char*>(codes) + kSingleCodes);
      Words word;
      std::memcpy(&word, codes, sizeof word);
#pragma GCC unroll 4
      for (int c = 0; c < kCodes; c += 2, tokens += kTokenTile) {
        const Words pairs = rounded_pairs(code_as_float<C>(word, c) * scale + bias,
                                          code_as_float<C>(word, c + 1) * scale + bias);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) total[m] = add_products(total[m], Words{} + tokens[m], pairs);
      }
    }
  }
  const int64_t count = std::min<int64_t>(M, t.rows - token);
  for (int m = 0; m < count; ++m) store_vector(t, token + m, first, total[m]);
}

// Multiplies the rows of a part by all tokens.
template <Codes C, typename T>
void multiply_few_tokens(const LinearTask& t, const LinearRange& range) {
  for (int64_t n = range.first_row; n < range.last_row; n += W) {
    for (int64_t token = 0; token < t.rows; token += kFewTokens) {
      const int64_t count = t.rows - token;
      const auto multiply = count <= 4    ? multiply_few_tokens<C, T, 4>
                            : count <= 8  ? multiply_few_tokens<C, T, 8>
                            : count <= 12 ? multiply_few_tokens<C, T, 12>
                                          : multiply_few_tokens<C, T, kFewTokens>;
      multiply(t, token, n);
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
