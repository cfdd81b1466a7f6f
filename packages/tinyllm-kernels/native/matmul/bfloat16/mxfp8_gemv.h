// Decode of weights in mxfp8 with x in bfloat16, with AVX512_BF16 and AVX512_VBMI.
//
// Codes become pairs of bfloat16, which are multiplied by pairs of x as they lie in memory. The 32
// columns of a group are a vector, whose products are multiplied by the scale of the group.
#pragma once

#include "matmul/bfloat16/e4m3_pairs.h"

#if defined(TINYLLM_E4M3_PAIRS)

#include <algorithm>

#include "isa/lane_sums.h"
#include "isa/with_constant.h"
#include "matmul/linear.h"
#include "matmul/store.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kMxfp8Tokens = 4;  // rows of x that are multiplied by a code at once

// Rows of w whose results are stored together.
inline constexpr int64_t kMxfp8Rows = 4;

// Writes the sums of row n of w times M rows of x from m0 on. The order of each sum is independent
// of M. Each row of x has two sums, because one alone would wait for its previous addition.
template <int M>
void sum_mxfp8_row(const LinearTask& t, int64_t ahead, int64_t n, int64_t m0, Floats (&totals)[M]) {
  const int64_t columns = t.w->columns, groups = columns / kMxfp8Group, stride = t.x_stride;
  const auto* codes = static_cast<const uint8_t*>(t.w->data) + n * columns;
  const auto* scales = static_cast<const uint8_t*>(t.w->scales) + n * groups;
  const BFloat16* x = t.x_unpacked + m0 * stride;
  Floats sums[2][M] = {};
  const auto add_groups = [&]<int Groups>(int64_t first) {
    __builtin_prefetch(codes + first * kMxfp8Group + ahead);
    if (first % 64 == 0) __builtin_prefetch(scales + first + kScaleDistance);  // once a cache line
    Words pairs[Groups];
    look_up_e4m3<Groups>(codes + first * kMxfp8Group, pairs);
#pragma GCC unroll 2
    for (int i = 0; i < Groups; ++i) {
      const int64_t g = first + i;
      const Floats scale = splat(e8m0(scales[g]));
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const __m512i x_pairs = _mm512_loadu_si512(x + m * stride + g * kMxfp8Group);
        const __m512 products =
            _mm512_dpbf16_ps(__m512{}, bit_cast<__m512bh>(pairs[i]), bit_cast<__m512bh>(x_pairs));
        sums[i][m] = multiply_add(bit_cast<Floats>(products), scale, sums[i][m]);
      }
    }
  };
  const int64_t even = groups / 2 * 2;
  for (int64_t g = 0; g < even; g += 2) add_groups.template operator()<2>(g);
  if (even < groups) add_groups.template operator()<1>(even);
  for (int m = 0; m < M; ++m) totals[m] = sums[0][m] + sums[1][m];
}

// Computes rows n to n + `rows` of w, at most kMxfp8Rows, one after the other, so that memory is
// read in order, times M rows of x from m0 on.
template <int M>
void multiply_mxfp8_rows(const LinearTask& t, int64_t ahead, int64_t n, int64_t rows, int64_t m0) {
  Floats totals[kMxfp8Rows][M];
  for (int64_t r = 0; r < kMxfp8Rows; ++r) {  // the last row is repeated for missing ones
    sum_mxfp8_row<M>(t, ahead, n + std::min(r, rows - 1), m0, totals[r]);
  }
  for (int m = 0; m < M; ++m) {
    float results[kMxfp8Rows];
    store_sums(totals[0][m], totals[1][m], totals[2][m], totals[3][m], results);
    store_results(t, m0 + m, n, results, rows);
  }
}

// Computes a part, W rows of w at a time, so that they are still in the cache for the next rows of
// x.
inline void mxfp8_gemv(const LinearTask& t, const LinearRange& range) {
  const int64_t ahead = single_code_distance();
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t last = std::min(first + W, range.last_row);
    for (int64_t m = 0; m < t.tokens; m += kMxfp8Tokens) {
      with_constant<kMxfp8Tokens>(t.tokens - m, [&]<int M>() {
        for (int64_t n = first; n < last; n += kMxfp8Rows) {
          multiply_mxfp8_rows<M>(t, ahead, n, std::min(kMxfp8Rows, last - n), m);
        }
      });
    }
  }
}

}  // namespace tinyllm::TINYLLM_ISA

#endif
