// Decode in integers: W interleaved rows of w times a few rows of x.
//
// Each of W rows of w has a lane. A word of codes of each row is multiplied by the same few numbers
// of x. The sum of a group is an exact integer in the lane of its row and is converted to a float
// once.
#pragma once

#include <algorithm>

#include "isa/load_store.h"
#include "isa/vectors.h"
#include "isa/with_constant.h"
#include "matmul/integer/prefetch_codes.h"
#include "matmul/integer/quantize_x.h"
#include "matmul/interleave.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_INTEGERS)

// Multiplies W interleaved rows of w from `first` on, of which `rows` exist, by M rows of x from
// `token` on. T is the type of the scales. The order of each sum is independent of M.
template <Codes C, typename T, int M, typename Prefetch>
void integer_gemv_rows(const LinearTask& t, const Weights& w, int64_t token, int64_t first,
                       int64_t rows, Prefetch prefetch) {
  constexpr int kCodes = kCodesPerWord<kBits<C>>;  // in a word
  constexpr int kWordsOfLine = Prefetch::kWordsOfLine;
  const int64_t columns = w.columns, groups = columns / w.group;
  const int group_words = w.group / kCodes;
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * (columns / kCodes);
  const RowAffines<T> affines(w, first);
  const int8_t* x = t.x_integers + token * columns * 2;
  const float* x_scales = t.x_scales + token * groups;
  const float* x_group_sums = t.x_group_sums + token * groups;
  Floats results[M] = {};
  for (int64_t g = 0; g < groups; ++g) {
    IntegerSums sums[M] = {};
    for (int i = 0; i < group_words; i += kWordsOfLine) {
      prefetch.codes(codes);
#pragma GCC unroll 2
      for (int n = 0; n < kWordsOfLine; ++n, codes += W, x += 2 * kCodes) {
        const CodeWords<C> words(codes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) words.multiply_add(x + m * columns * 2, sums[m]);
      }
    }
    affines.prefetch(g);
    const auto [scale, bias] = affines_of_integers<C>(affines[g], kCodeOffset<C>);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      results[m] += sums[m].to_floats() * (scale * x_scales[m * groups + g]);
      results[m] += bias * x_group_sums[m * groups + g];
    }
  }
  if (rows == W) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) store_vector(t, token + m, first, results[m]);
    return;
  }
  for (int m = 0; m < M; ++m) {
    alignas(64) float values[W];
    store(values, results[m]);
    store_results(t, token + m, first, values, rows);
  }
}

// `integer_gemv_rows` with the prefetches that pay for M rows of x.
template <Codes C, typename T, int M>
void prefetched_gemv_rows(const LinearTask& t, const Weights& w, int64_t token, int64_t first,
                          int64_t rows, const CodePrefetch& prefetch) {
  if (prefetch.has_two_steps<M>()) {
    return integer_gemv_rows<C, T, M>(t, w, token, first, rows, prefetch.two_steps);
  }
  integer_gemv_rows<C, T, M>(t, w, token, first, rows, prefetch.one_step);
}

// Computes a part, W rows of w at a time, so that they are still in the cache for the next rows of
// x. `scratch` has memory for W interleaved rows, used if w is plain.
template <Codes C, typename T>
void integer_gemv(const LinearTask& t, const LinearRange& range, float* scratch) {
  const CodePrefetch prefetch;
  const int64_t rest = (range.last_token - range.first_token) % kGemvTokens;
  const int64_t rest_token = range.last_token - rest;
  // The kernel of the last tokens is chosen once a part: a choice for each W rows of w takes 2
  // percent of the time of one token.
  auto* multiply_rest = prefetched_gemv_rows<C, T, 1>;
  if (rest) {
    with_constant<kGemvTokens - 1>(rest,
                                   [&]<int M>() { multiply_rest = prefetched_gemv_rows<C, T, M>; });
  }
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t rows = std::min<int64_t>(W, range.last_row - first);
    Weights interleaved;
    if (!t.w->interleaved) interleaved = interleave_rows(*t.w, first, rows, scratch);
    const Weights& w = t.w->interleaved ? *t.w : interleaved;
    for (int64_t m = range.first_token; m < rest_token; m += kGemvTokens) {
      prefetched_gemv_rows<C, T, kGemvTokens>(t, w, m, first, rows, prefetch);
    }
    if (rest) multiply_rest(t, w, rest_token, first, rows, prefetch);
  }
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
