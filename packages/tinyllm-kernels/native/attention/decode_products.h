// The products of a few rows of queries with keys, and of their weights with values.
//
// Keys and values are read where they lie, in order, once for a few rows. Lanes run along the
// features, as they do in memory.
#pragma once

#include <type_traits>

#include "attention/plan.h"
#include "attention/kv_rows.h"
#include "isa/lanes.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kKeys = 4;                // whose products are summed side by side
inline constexpr int kRows = W == 16 ? 4 : 2;  // of queries that share a key in registers
inline constexpr int kVectors = 4;             // of features whose sums stay in registers

// Calls `work` with the number of each part, as a constant.
template <typename Rows, typename Work>
void by_parts(Work work) {
  work(std::integral_constant<int, 0>());
  if constexpr (Rows::kParts == 2) work(std::integral_constant<int, 1>());
}

// The products of R queries with N keys from the j-th on.
template <typename Rows, int R, int N>
void score_keys(const KeyValues& kv, const Places& at, int64_t j, int64_t dim, const float* q,
                int64_t width, float* scores) {
  static_assert(N == kKeys || N == 1);
  Floats sums[R][N] = {};
  const int64_t step = Rows::kScaled ? kv.group : dim;
  for (int64_t d0 = 0; d0 < dim; d0 += step) {
    Affine affine[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) affine[n] = Rows::affine(kv, at, j + n, d0 / step);
    for (int64_t d = d0; d < d0 + step; d += Rows::kParts * W) {
      by_parts<Rows>([&]<int Part>(std::integral_constant<int, Part>) {
        Floats keys[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) keys[n] = numbers<Rows, Part>(at.codes[j + n], d, affine[n]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          Floats query = load(q + r * width + d + Part * W);
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) sums[r][n] += query * keys[n];
        }
      });
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    float* to = scores + r * kSpan + j;
    if constexpr (N == kKeys) {
      store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], to);
    } else {
      to[0] = sum(sums[r][0]);
    }
  }
}

// Calls `work` with R rows at a time, as a constant: `kRows`, and what is left over.
template <typename Work>
void by_rows(int64_t rows, Work work) {
  int64_t n = 0;
  for (; n + kRows <= rows; n += kRows) work(n, std::integral_constant<int, kRows>());
  if constexpr (kRows == 4) {
    if (n + 2 <= rows) work(n, std::integral_constant<int, 2>()), n += 2;
  }
  if (n < rows) work(n, std::integral_constant<int, 1>());
}

// Adds to the sums of R rows their weighted values, for N vectors of features from `d` on.
template <typename Rows, int R, int N>
void mix_values(const KeyValues& kv, const Places& at, int64_t count, int64_t dim, int64_t d,
                const float* weights, float* sums, int64_t width) {
  Floats found[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) found[r][n] = load(sums + r * width + d + n * W);
  }
  for (int64_t j = 0; j < count; ++j) {
    if (d == 0) touch<Rows>(at, j, j + 1, dim);
    Affine affine{};
#pragma GCC unroll 4
    for (int n = 0; n < N; n += Rows::kParts) {
      const int64_t feature = d + n * W;
      if (Rows::kScaled && (n == 0 || kv.group_of(feature) != kv.group_of(feature - W))) {
        affine = Rows::affine(kv, at, j, kv.group_of(feature));
      }
      by_parts<Rows>([&]<int Part>(std::integral_constant<int, Part>) {
        Floats values = numbers<Rows, Part>(at.codes[j], feature, affine);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) found[r][n + Part] += weights[r * kSpan + j] * values;
      });
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(sums + r * width + d + n * W, found[r][n]);
  }
}

template <typename Rows, int R>
void mix_rows(const KeyValues& kv, const Places& at, int64_t count, int64_t dim,
              const float* weights, float* sums, int64_t width) {
  int64_t d = 0;
  for (; d + kVectors * W <= dim; d += kVectors * W) {
    mix_values<Rows, R, kVectors>(kv, at, count, dim, d, weights, sums, width);
  }
  for (; d < dim; d += Rows::kParts * W) {
    mix_values<Rows, R, Rows::kParts>(kv, at, count, dim, d, weights, sums, width);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
