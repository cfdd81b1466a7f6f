// Decode in float32: a row of w times a few rows of x. Every code is multiplied as it is unpacked.
#pragma once

#include <algorithm>

#include "isa/unroll.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "matmul/store.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kFloatTokens = 4;  // rows of x that are multiplied by a code at once

// Computes row n of a dense w times M rows of x from m0 on. The order of each sum is independent of M.
// Each row of x has two sums, because one alone would wait for its previous addition.
template <typename Format, int M>
void multiply_dense_row(const LinearTask& t, int64_t n, int64_t m0, PrefetchDistances ahead) {
  const int columns = t.w->columns, whole = columns / (2 * W) * (2 * W);
  const float* x = t.x + m0 * columns;
  const typename Format::Row row = Format::row(*t.w, n);
  Floats even[M] = {}, odd[M] = {};
  for (int k = 0; k < whole; k += 2 * W) {
    if (ahead.far) Format::prefetch(row + k, ahead);
    const Floats a = Format::raw(row, k), b = Format::raw(row, k + W);
    for (int m = 0; m < M; ++m) {
      even[m] += a * load(x + m * columns + k);
      odd[m] += b * load(x + m * columns + k + W);
    }
  }
  for (int m = 0; m < M; ++m) {
    float result = sum(even[m] + odd[m]);
    for (int k = whole; k < columns; ++k) result += Format::one(row, k) * x[m * columns + k];
    store_result(t, m0 + m, n, result);
  }
}

// Computes row n of a quantized w times M rows of x from m0 on. The order of each sum is independent
// of M. The bias of a group is multiplied by the sum of x over the group, once for all codes.
template <typename Format, int M>
void multiply_quantized_row(const LinearTask& t, int64_t n, int64_t m0) {
  const Weights& w = *t.w;
  const typename Format::Row row = Format::row(w, n);
  const int64_t groups = w.columns / w.group;
  Floats total[M] = {};
  float biases[M] = {};
  for (int64_t g = 0; g < groups; ++g) {
    const int k0 = static_cast<int>(g) * w.group;
    Format::prefetch(row, k0);
    Floats sums[M] = {};
    for (int k = k0; k < k0 + w.group; k += W) {
      const Floats codes = Format::raw(row, k);
      for (int m = 0; m < M; ++m) sums[m] += codes * load(t.x + (m0 + m) * w.columns + k);
    }
    const Affine affine = Format::affine(w, n * groups + g);
    for (int m = 0; m < M; ++m) {
      total[m] += sums[m] * affine.scale;
      if constexpr (Format::kBiased) {
        biases[m] += affine.bias * t.x_group_sums[(m0 + m) * groups + g];
      }
    }
  }
  for (int m = 0; m < M; ++m) store_result(t, m0 + m, n, sum(total[m]) + biases[m]);
}

// Computes a part: rows of w times all rows of x. It takes W rows of w at a time, so that
// kFloatTokens rows of x stay in the first-level cache.
template <typename Format>
void multiply_float_rows(const LinearTask& t, const LinearRange& range) {
  [[maybe_unused]] const PrefetchDistances ahead = row_distances();
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t last = std::min(first + W, range.last_row);
    for (int64_t m = 0; m < t.rows; m += kFloatTokens) {
      with_constant<kFloatTokens>(t.rows - m, [&]<int M>() {
        for (int64_t n = first; n < last; ++n) {
          if constexpr (Format::kScaled) {
            multiply_quantized_row<Format, M>(t, n, m);
          } else {
            multiply_dense_row<Format, M>(t, n, m, ahead);
          }
        }
      });
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
