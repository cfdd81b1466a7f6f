// GEMV in bfloat16, for the prefill of few tokens: interleaved rows of codes times all tokens.
//
// A word of codes of each row becomes pairs of bfloat16 in registers, and the pairs of a token are
// broadcast to all lanes. No panel is written. The numbers and the order of each sum are those of
// avx512_gemm.h, so that the bits of a token do not depend on the number of tokens.
#pragma once

#include <algorithm>

#include "matmul/bfloat16/avx512_gemm.h"
#include "matmul/choose_kernel.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_ISA {

// Tokens whose sums stay in registers: one or two groups of kMicroTokens.
inline constexpr int kFewTokens = 2 * kMicroTokens;
static_assert(kFewTokens == kMostGemvTokens);

// Multiplies W rows of w from `first` on by M tokens, of which some may not exist. T is the type of
// the scales.
template <Codes C, typename T, int M>
void bfloat16_gemv_rows(const LinearTask& t, int64_t first) {
  const Weights& w = *t.w;
  constexpr int kCodes = kCodesPerWord<kBits<C>>;  // in a word
  const int64_t groups = w.columns / w.group;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * (w.columns / kCodes);
  const RowAffines<T> affines(w, first);
  const uint32_t* x = packed_tokens(t, 0);
  const int64_t next_group = M > kMicroTokens ? packed_tokens(t, kMicroTokens) - x : 0;
  const int64_t ahead = single_code_distance();
  constexpr int kChunkWords = kChunk / kCodes, kGroups = kGroupsOf32Columns<T>;
  const int group_chunks = kGroups > 1 ? 1 : w.group / kChunk;
  Floats total[M] = {};
  for (int64_t g = 0; g < groups; g += kGroups) {
    Affines chunk_groups[kGroups];
    for (int n = 0; n < kGroups; ++n) chunk_groups[n] = affines[g + n];
    for (int chunk = 0; chunk < group_chunks; ++chunk) {
      for (int i = 0; i < kChunkWords; ++i, codes += W) {
        const Affines& group = chunk_groups[i * kGroups / kChunkWords];
        __builtin_prefetch(reinterpret_cast<const char*>(codes) + ahead);
        Words word;
        std::memcpy(&word, codes, sizeof word);
#pragma GCC unroll 4
        for (int pair = 0; pair < kCodes / 2; ++pair, ++x) {
          const Words pairs = pairs_of_word<C>(word, pair, group);
#pragma GCC unroll 16
          for (int m = 0; m < M; ++m) {
            const uint32_t x_pair = x[m / kMicroTokens * next_group + m % kMicroTokens * W];
            total[m] = add_products(total[m], x_pair, pairs);
          }
        }
      }
      x += (kMicroTokens - 1) * W;
    }
  }
  const int64_t count = std::min<int64_t>(M, t.tokens);
  for (int64_t m = 0; m < count; ++m) store_vector_as<BFloat16>(t, m, first, total[m]);
}

// Multiplies the rows of a part by all tokens.
template <Codes C, typename T>
void bfloat16_gemv(const LinearTask& t, const LinearRange& range) {
  const auto multiply = t.tokens <= 4    ? bfloat16_gemv_rows<C, T, 4>
                        : t.tokens <= 8  ? bfloat16_gemv_rows<C, T, 8>
                        : t.tokens <= 12 ? bfloat16_gemv_rows<C, T, 12>
                                         : bfloat16_gemv_rows<C, T, kFewTokens>;
  for (int64_t n = range.first_row; n < range.last_row; n += W) multiply(t, n);
}

}  // namespace tinyllm::TINYLLM_ISA
