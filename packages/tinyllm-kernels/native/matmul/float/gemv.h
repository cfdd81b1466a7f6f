// Decode in float32: a few rows of w times a few rows of x. Every code is multiplied as it is
// unpacked.
#pragma once

#include <algorithm>

#include "isa/with_constant.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "matmul/store.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_ISA {

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
    for (int k = whole; k < columns; ++k) {
      result = multiply_add(Format::one(row, k), x[m * columns + k], result);
    }
    store_result(t, m0 + m, n, result);
  }
}

// Rows of a quantized w that are multiplied by M rows of x at once. Their sums do not wait for each
// other, and share the loads of x.
constexpr int quantized_rows(int M) { return M < 4 ? 4 / M : 1; }

// Computes rows n to n + `rows` of a quantized w, at most quantized_rows(M), times M rows of x from
// m0 on. The order of each sum is independent of M. The bias of a group is multiplied by the sum of
// x over the group, once for all codes.
template <typename Format, int M>
void multiply_quantized_rows(const LinearTask& t, int64_t n, int64_t rows, int64_t m0) {
  constexpr int kRows = quantized_rows(M), kVectors = Format::kVectors;
  const Weights& w = *t.w;
  const int columns = w.columns, group = Format::kGroup ? Format::kGroup : w.group;
  const int64_t groups = columns / group;
  const float* x = t.x + m0 * columns;
  Floats total[kRows][M] = {};
  float biases[kRows][M] = {};
  typename Format::Row row[kRows];
  int64_t row_groups[kRows];
  for (int r = 0; r < kRows; ++r) {  // the last row is repeated for missing ones
    const int64_t index = n + std::min<int64_t>(r, rows - 1);
    row[r] = Format::row(w, index);
    row_groups[r] = index * groups;
  }
  for (int64_t g = 0; g < groups; ++g, x += group) {
    const int k0 = static_cast<int>(g) * group;
    for (int r = 0; r < kRows; ++r) {
      if (k0 % Format::kLineColumns == 0) Format::prefetch(row[r], k0);
    }
    Floats sums[kRows][M] = {};
    for (int i = 0; i < group; i += kVectors * W) {
      for (int r = 0; r < kRows; ++r) {
        Floats codes[kVectors];
        Format::read(row[r], k0 + i, codes);
        for (int v = 0; v < kVectors; ++v) {
          for (int m = 0; m < M; ++m) {
            const Floats numbers = load(x + m * columns + i + v * W);
            sums[r][m] = multiply_add(codes[v], numbers, sums[r][m]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const Affine affine = Format::affine(w, row_groups[r] + g);
      for (int m = 0; m < M; ++m) {
        const Floats sum_of_group = sums[r][m] * Format::kUnit;
        total[r][m] = multiply_add(sum_of_group, Floats{} + affine.scale, total[r][m]);
        if constexpr (Format::kBiased) {
          const float group_sum = t.x_group_sums[(m0 + m) * groups + g];
          biases[r][m] = multiply_add(affine.bias, group_sum, biases[r][m]);
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int m = 0; m < M; ++m) {
      store_result(t, m0 + m, n + r, sum(total[r][m]) + biases[r][m]);
    }
  }
}

// Computes a part: rows of w times all rows of x. It takes W rows of w at a time, so that
// kFloatTokens rows of x stay in the first-level cache.
template <typename Format>
void float_gemv(const LinearTask& t, const LinearRange& range) {
  [[maybe_unused]] const PrefetchDistances ahead = row_distances();
  for (int64_t first = range.first_row; first < range.last_row; first += W) {
    const int64_t last = std::min(first + W, range.last_row);
    for (int64_t m = 0; m < t.tokens; m += kFloatTokens) {
      with_constant<kFloatTokens>(t.tokens - m, [&]<int M>() {
        if constexpr (Format::kScaled) {
          constexpr int64_t kRows = quantized_rows(M);
          for (int64_t n = first; n < last; n += kRows) {
            multiply_quantized_rows<Format, M>(t, n, std::min(kRows, last - n), m);
          }
        } else {
          for (int64_t n = first; n < last; ++n) multiply_dense_row<Format, M>(t, n, m, ahead);
        }
      });
    }
  }
}

}  // namespace tinyllm::TINYLLM_ISA
