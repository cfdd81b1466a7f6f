// The results of a matrix product, one by one: bias and residual added, rounded once.
#pragma once

#include <algorithm>

#include "isa/load_store.h"
#include "isa/transpose.h"
#include "isa/vectors.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "types.h"

namespace tinyllm::TINYLLM_TIER {

inline void put(const LinearTask& t, int64_t m, int64_t n, float value) {
  int64_t at = m * t.w->rows + n;
  if (t.bias) value += number(t.bias, t.type, n);
  if (t.residual) value += number(t.residual, t.type, at);
  switch (t.type) {
    case Type::float32: static_cast<float*>(t.y)[at] = value; break;
    case Type::float16: static_cast<Float16*>(t.y)[at] = from_float<Float16>(value); break;
    default: static_cast<BFloat16*>(t.y)[at] = from_float<BFloat16>(value); break;
  }
}

// Of up to W results of row m side by side, from the n-th on.
inline void put_some(const LinearTask& t, int64_t m, int64_t n, const float* values, int64_t count) {
  if (count < W) {
    for (int64_t i = 0; i < count; ++i) put(t, m, n + i, values[i]);
    return;
  }
  with_type(t.type, [&]<typename T>(T*) {
    const int64_t at = m * t.w->rows + n;
    Floats sums = load(values);
    if (t.bias) sums += load_as_floats(static_cast<const T*>(t.bias) + n);
    if (t.residual) sums += load_as_floats(static_cast<const T*>(t.residual) + at);
    store_floats(static_cast<T*>(t.y) + at, sums);
  });
}

// --- put_square.h
// Results of a product whose lanes are tokens, turned to where they belong.

// Sums of W rows of w from n0 on for up to W tokens from m on, `stride` from a row to the next.
template <typename T>
void put_square(const LinearTask& t, int64_t m, int64_t tokens, int64_t n0, const float* sums,
                int64_t stride) {
  Words square[W];
  for (int n = 0; n < W; ++n) square[n] = std::bit_cast<Words>(load(sums + n * stride));
  transpose(square);
  const T* bias = static_cast<const T*>(t.bias);
  for (int i = 0; i < tokens; ++i) {
    const int64_t at = (m + i) * t.w->rows + n0;
    Floats row = std::bit_cast<Floats>(square[i]);
    if (bias) row += load_as_floats(bias + n0);
    if (t.residual) row += load_as_floats(static_cast<const T*>(t.residual) + at);
    store_floats(static_cast<T*>(t.y) + at, row);
  }
}

// The sums of some rows of w for some tokens, with bias and residual, to y.
template <typename T>
void put_squares(const LinearTask& t, int64_t m0, int64_t m1, int64_t n0, int64_t rows,
                 const float* sums, int64_t stride) {
  int64_t n = 0;
  for (; n + W <= rows; n += W) {
    for (int64_t m = m0; m < m1; m += W) {
      put_square<T>(t, m, std::min<int64_t>(m1 - m, W), n0 + n, sums + n * stride + (m - m0),
                    stride);
    }
  }
  for (; n < rows; ++n) {
    for (int64_t m = m0; m < m1; ++m) put(t, m, n0 + n, sums[n * stride + (m - m0)]);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
