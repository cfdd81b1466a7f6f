// Results of a matrix product: float32 sums plus bias and residual, rounded once to the type of y.
#pragma once

#include <algorithm>

#include "isa/load_store.h"
#include "isa/transpose.h"
#include "isa/vectors.h"
#include "matmul/formats.h"
#include "matmul/linear.h"
#include "types.h"

namespace tinyllm::TINYLLM_ISA {

// Stores y[m, n].
inline void store_result(const LinearTask& t, int64_t m, int64_t n, float value) {
  const int64_t index = m * t.y_stride + n;
  if (t.bias) value += number_at(t.bias, t.type, n);
  if (t.residual) value += number_at(t.residual, t.type, m * t.w->rows + n);
  switch (t.type) {
    case Type::float32: static_cast<float*>(t.y)[index] = value; break;
    case Type::float16: static_cast<Float16*>(t.y)[index] = from_float<Float16>(value); break;
    default: static_cast<BFloat16*>(t.y)[index] = from_float<BFloat16>(value); break;
  }
}

// Stores y[m, n] to y[m, n + W - 1]. T is the type of y.
template <typename T>
[[gnu::always_inline]] inline void store_vector_as(const LinearTask& t, int64_t m, int64_t n,
                                                   Floats results) {
  const T* residual = static_cast<const T*>(t.residual);
  if (t.bias) results += load_as_floats(static_cast<const T*>(t.bias) + n);
  if (residual) results += load_as_floats(residual + m * t.w->rows + n);
  store_floats(static_cast<T*>(t.y) + m * t.y_stride + n, results);
}

inline void store_vector(const LinearTask& t, int64_t m, int64_t n, Floats results) {
  with_type(t.type, [&]<typename T>(T*) { store_vector_as<T>(t, m, n, results); });
}

// Stores y[m, n] to y[m, n + count - 1], with count <= W. `values` has `count` floats.
inline void store_results(const LinearTask& t, int64_t m, int64_t n, const float* values,
                          int64_t count) {
  if (count < W) {
    for (int64_t i = 0; i < count; ++i) store_result(t, m, n + i, values[i]);
    return;
  }
  store_vector(t, m, n, load(values));
}

// Stores sums whose lanes are tokens: `sums + i * stride` has the sums of row n + i of w and W
// tokens from m on. Writes W rows of w for `tokens` <= W tokens. T is the type of y.
template <typename T>
void store_transposed_square(const LinearTask& t, int64_t m, int64_t tokens, int64_t n,
                             const float* sums, int64_t stride) {
  Words square[W];
  for (int i = 0; i < W; ++i) square[i] = bit_cast<Words>(load(sums + i * stride));
  transpose(square);
  for (int i = 0; i < tokens; ++i) {
    store_vector_as<T>(t, m + i, n, bit_cast<Floats>(square[i]));
  }
}

// Stores tokens m0 to m1 of `rows` rows of w from n0 on. `sums + i * stride` has row n0 + i of w,
// with room for whole vectors of tokens. T is the type of y.
template <typename T>
void store_transposed(const LinearTask& t, int64_t m0, int64_t m1, int64_t n0, int64_t rows,
                      const float* sums, int64_t stride) {
  int64_t n = 0;
  for (; n + W <= rows; n += W) {
    for (int64_t m = m0; m < m1; m += W) {
      const float* square = sums + n * stride + (m - m0);
      store_transposed_square<T>(t, m, std::min<int64_t>(m1 - m, W), n0 + n, square, stride);
    }
  }
  for (; n < rows; ++n) {
    for (int64_t m = m0; m < m1; ++m) store_result(t, m, n0 + n, sums[n * stride + (m - m0)]);
  }
}

}  // namespace tinyllm::TINYLLM_ISA
