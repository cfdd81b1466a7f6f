// The rows of a block on their way in, as floats, and out.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/plan.h"
#include "matmul/formats.h"
#include "isa/load_store.h"
#include "attention/softmax.h"

namespace tinyllm::TINYLLM_TIER {

// Where row n of a block is in an array with the strides of q or y, in numbers.
inline int64_t place(const AttentionTask& t, const QueryBlock& block, int64_t n,
                     const int64_t (&strides)[3]) {
  const int64_t row = block.first + n, group = t.group();
  const Request request(t, block.request);
  return block.request * strides[0] + request.first * strides[2] + (block.kv_head * group + row % group) * strides[1] + row / group * strides[2];
}

// The queries of a block times `scale` as floats, with zeros after the last feature.
inline void load_queries(const AttentionTask& t, const QueryBlock& block, float scale, float* to) {
  const int64_t width = t.width();
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t n = 0; n < block.rows; ++n, to += width) {
      const T* from = static_cast<const T*>(t.q) + place(t, block, n, t.q_strides);
      int64_t d = 0;
      for (; d + W <= t.dim; d += W) store(to + d, load_as_floats(from + d) * scale);
      for (; d < t.dim; ++d) to[d] = to_float(from[d]) * scale;
      std::fill(to + d, to + width, 0.0f);
    }
  });
}

// Adds the mask to the scores of a row of a block over some of the keys.
inline void add_mask(const AttentionTask& t, const QueryBlock& block, int64_t n, int64_t first,
                     int64_t count, float* scores) {
  const int64_t row = block.first + n, group = t.group();
  const int64_t at = block.request * t.mask_strides[0] +
                     (block.kv_head * group + row % group) * t.mask_strides[1] +
                     row / group * t.mask_strides[2] + first * t.mask_strides[3];
  int64_t j = 0;
  if (t.mask_strides[3] == 1) {
    with_type(t.mask_type, [&]<typename T>(T*) {
      const T* mask = static_cast<const T*>(t.mask) + at;
      for (; j + W <= count; j += W) store(scores + j, load(scores + j) + load_as_floats(mask + j));
    });
  }
  for (; j < count; ++j) scores[j] += number(t.mask, t.mask_type, at + j * t.mask_strides[3]);
}

// Row n of y: weighted values over the sum of the weights; zeros where nothing was seen.
inline void store_row(const AttentionTask& t, const QueryBlock& block, int64_t n, const float* sums,
                      float total) {
  const float share = total == 0 ? 0.0f : 1 / total;
  with_type(t.type, [&]<typename T>(T*) {
    T* y = static_cast<T*>(t.y) + place(t, block, n, t.y_strides);
    int64_t d = 0;
    for (; d + W <= t.dim; d += W) store_floats(y + d, load(sums + d) * share);
    for (; d < t.dim; ++d) y[d] = from_float<T>(sums[d] * share);
  });
}

}  // namespace tinyllm::TINYLLM_TIER
