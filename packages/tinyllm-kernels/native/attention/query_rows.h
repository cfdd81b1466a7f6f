// The rows of a query tile: loading queries as floats, adding the mask, and storing results.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/plan.h"
#include "isa/load_store.h"
#include "matmul/formats.h"

namespace tinyllm::TINYLLM_ISA {

// The head and the query of row n of a tile.
struct RowIndex {
  RowIndex(const AttentionTask& t, const QueryTile& tile, int64_t n) {
    const int64_t row = tile.first + n, heads_per_kv = t.heads_per_kv();
    head = tile.kv_head * heads_per_kv + row % heads_per_kv;
    query = row / heads_per_kv;
  }

  int64_t head, query;
};

// The offset of row n of a tile in q or y, in numbers. `strides` are `q_strides` or `y_strides`.
inline int64_t row_offset(const AttentionTask& t, const QueryTile& tile, int64_t n,
                          const int64_t (&strides)[3]) {
  const Request request(t, tile.request);
  const RowIndex row(t, tile, n);
  return tile.request * strides[0] + row.head * strides[1] +
         (request.first_query + row.query) * strides[2];
}

// Writes the queries of a tile times `scale` as floats: rows of `padded_dim()` numbers, with zeros
// after the last feature.
inline void load_queries(const AttentionTask& t, const QueryTile& tile, float scale, float* to) {
  const int64_t width = t.padded_dim();
  with_type(t.type, [&]<typename T>(T*) {
    for (int64_t n = 0; n < tile.rows; ++n, to += width) {
      const T* from = static_cast<const T*>(t.q) + row_offset(t, tile, n, t.q_strides);
      int64_t d = 0;
      for (; d + W <= t.dim; d += W) store(to + d, load_as_floats(from + d) * scale);
      for (; d < t.dim; ++d) to[d] = to_float(from[d]) * scale;
      std::fill(to + d, to + width, 0.0f);
    }
  });
}

// Adds the mask to the scores of row n of a tile over `keys`.
inline void add_mask(const AttentionTask& t, const QueryTile& tile, int64_t n, KeyRange keys,
                     float* scores) {
  const RowIndex row(t, tile, n);
  const int64_t offset = tile.request * t.mask_strides[0] + row.head * t.mask_strides[1] +
                         row.query * t.mask_strides[2] + keys.first * t.mask_strides[3];
  const int64_t count = keys.count();
  int64_t j = 0;
  if (t.mask_strides[3] == 1) {
    with_type(t.mask_type, [&]<typename T>(T*) {
      const T* mask = static_cast<const T*>(t.mask) + offset;
      for (; j + W <= count; j += W) store(scores + j, load(scores + j) + load_as_floats(mask + j));
    });
  }
  for (; j < count; ++j) {
    scores[j] += number_at(t.mask, t.mask_type, offset + j * t.mask_strides[3]);
  }
}

// Stores row n of a tile: values / row_sum, or zeros if the query attends to no key.
inline void store_row(const AttentionTask& t, const QueryTile& tile, int64_t n, const float* values,
                      float row_sum) {
  const float factor = row_sum == 0 ? 0.0f : 1 / row_sum;
  with_type(t.type, [&]<typename T>(T*) {
    T* y = static_cast<T*>(t.y) + row_offset(t, tile, n, t.y_strides);
    int64_t d = 0;
    for (; d + W <= t.dim; d += W) store_floats(y + d, load(values + d) * factor);
    for (; d < t.dim; ++d) y[d] = from_float<T>(values[d] * factor);
  });
}

}  // namespace tinyllm::TINYLLM_ISA
