// Decode in float32: a row of w times a few rows of x. Every code is multiplied as it is unpacked.
#pragma once

#include <algorithm>

#include "isa/unroll.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "matmul/store.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kFloatTokens = 4;  // rows of x that are multiplied by a code at once

// Computes row n of w times M rows of x from m0 on. The order of each sum is independent of M. The
// bias of a group is multiplied by the sum of x over the group, once for all codes.
template <typename Format, int M>
void multiply_row(const LinearTask& t, int64_t n, int64_t m0) {
  const Weights& w = *t.w;
  typename Format::Row row = Format::row(w, n);
  const int whole = w.columns / W * W;
  Floats total[M] = {};
  float rest[M] = {};  // biases, or columns after the last whole vector
  if constexpr (Format::kScaled) {
    const int64_t groups = w.columns / w.group;
    for (int64_t g = 0; g < groups; ++g) {
      const int k0 = static_cast<int>(g) * w.group;
      Format::prefetch(row, k0);
      Floats sums[M] = {};
      for (int k = k0; k < k0 + w.group; k += W) {
        Floats codes = Format::raw(row, k);
        for (int m = 0; m < M; ++m) sums[m] += codes * load(t.x + (m0 + m) * w.columns + k);
      }
      Affine affine = Format::affine(w, n * groups + g);
      for (int m = 0; m < M; ++m) {
        total[m] += sums[m] * affine.scale;
        if constexpr (Format::kBiased) {
          rest[m] += affine.bias * t.x_group_sums[(m0 + m) * groups + g];
        }
      }
    }
  } else {
    for (int k = 0; k < whole; k += W) {
      Floats numbers = Format::raw(row, k);
      for (int m = 0; m < M; ++m) total[m] += numbers * load(t.x + (m0 + m) * w.columns + k);
    }
    for (int k = whole; k < w.columns; ++k) {
      for (int m = 0; m < M; ++m) rest[m] += Format::one(row, k) * t.x[(m0 + m) * w.columns + k];
    }
  }
  for (int m = 0; m < M; ++m) store_result(t, m0 + m, n, sum(total[m]) + rest[m]);
}

// Computes a part: rows of w times all rows of x. It takes W rows of w at a time, so that
// kFloatTokens rows of x stay in the first-level cache.
template <typename Format>
void multiply_float_rows(const LinearTask& t, const LinearRange& range) {
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t last = std::min(first + W, range.last_row);
    for (int64_t m = 0; m < t.rows; m += kFloatTokens) {
      with_constant<kFloatTokens>(t.rows - m, [&]<int M>() {
        for (int64_t n = first; n < last; ++n) multiply_row<Format, M>(t, n, m);
      });
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
