// Products of a few query rows with keys, and of their weights with values, for decode steps.
//
// Keys and values are read in place, in order, once for a few query rows. Lanes run along the
// features, as they do in memory.
#pragma once

#include <type_traits>

#include "attention/decode/stream.h"
#include "attention/kv_rows.h"
#include "attention/plan.h"
#include "isa/lane_sums.h"

namespace tinyllm::TINYLLM_ISA {

// The micro-tile: query rows, and keys or values.
inline constexpr int kDecodeRows = W == 16 ? 4 : 2;
inline constexpr int kDecodeKeys = 4;

// Calls `work(std::integral_constant<int, I>)` for each vector I of a step of a row format.
template <typename Rows, typename Work>
void for_each_vector(Work work) {
  work(std::integral_constant<int, 0>());
  if constexpr (Rows::kVectors == 2) work(std::integral_constant<int, 1>());
}

// Calls `work(first, std::integral_constant<int, R>)` for query rows `first` to `first + R`: R is
// `Most`, 4, 2 or 1, and less for the remaining rows.
template <int Most = kDecodeRows, typename Work>
void for_row_tiles(int64_t rows, Work work) {
  int64_t n = 0;
  for (; n + Most <= rows; n += Most) work(n, std::integral_constant<int, Most>());
  if constexpr (Most == 4) {
    if (n + 2 <= rows) work(n, std::integral_constant<int, 2>()), n += 2;
  }
  if (Most > 1 && n < rows) work(n, std::integral_constant<int, 1>());
}

// Calls `work(first, std::integral_constant<int, N>)` for keys or values `first` to `first + N`: N
// is kDecodeKeys, and 1 for the last ones.
template <typename Work>
void for_key_blocks(int64_t count, Work work) {
  int64_t j = 0;
  for (; j + kDecodeKeys <= count; j += kDecodeKeys) {
    work(j, std::integral_constant<int, kDecodeKeys>());
  }
  for (; j < count; ++j) work(j, std::integral_constant<int, 1>());
}

// Writes the dot products of R query rows with N keys from the j-th on: scores[r * kDecodeSplit +
// j]. Query rows are `width` apart. N is 1 or kDecodeKeys.
template <typename Rows, int R, int N>
void score_keys(const KeyValues& kv, const RowPointers& keys, int64_t j, int64_t dim,
                const float* q, int64_t width, float* scores) {
  static_assert(N == kDecodeKeys || N == 1);
  Floats sums[R][N] = {};
  const int64_t group = Rows::kScaled ? kv.group : dim;
  for (int64_t d0 = 0; d0 < dim; d0 += group) {
    Affine affine[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) affine[n] = Rows::affine(kv, keys, j + n, d0 / group);
    for (int64_t d = d0; d < d0 + group; d += Rows::kVectors * W) {
      for_each_vector<Rows>([&]<int I>(std::integral_constant<int, I>) {
        Floats features[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
          features[n] = load_features<Rows, I>(keys.codes[j + n], d, affine[n]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          Floats query = load(q + r * width + d + I * W);
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) sums[r][n] += query * features[n];
        }
      });
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    float* to = scores + r * kDecodeSplit + j;
    if constexpr (N == kDecodeKeys) {
      store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], to);
    } else {
      to[0] = sum(sums[r][0]);
    }
  }
}

struct ValueRows {
  const KeyValues& kv;
  const RowPointers& rows;
  int64_t dim;
};

// Adds N values from the j-th on, times their weights, to `sums`, whose R rows are `width` apart.
// weights[r * kDecodeSplit + j] belongs to row r and value j. N is 1 or kDecodeKeys. Whole rows are
// read in order, so that memory is busy all the time. The sums stay in the first-level cache.
template <typename Rows, int R, int N>
void accumulate_values(const ValueRows& values, int64_t j, const float* weights, float* sums,
                       int64_t width) {
  const KeyValues& kv = values.kv;
  Floats weight[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) weight[r][n] = splat(weights[r * kDecodeSplit + j + n]);
  }
  const int64_t group = Rows::kScaled ? kv.group : values.dim;
  for (int64_t d0 = 0; d0 < values.dim; d0 += group) {
    Affine affine[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) affine[n] = Rows::affine(kv, values.rows, j + n, d0 / group);
    for (int64_t d = d0; d < d0 + group; d += Rows::kVectors * W) {
      for_each_vector<Rows>([&]<int I>(std::integral_constant<int, I>) {
        Floats total[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) total[r] = load(sums + r * width + d + I * W);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
          Floats features = load_features<Rows, I>(values.rows.codes[j + n], d, affine[n]);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) total[r] += weight[r][n] * features;
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) store(sums + r * width + d + I * W, total[r]);
      });
    }
  }
}

}  // namespace tinyllm::TINYLLM_ISA
