// The parts of an attention task: by request, key head, queries and, if the queries are few, keys.
//
// A query is computed by one of two kernels: as a decode step, or as part of a prefill, in chunks
// of any size down to one query. Each kernel adds up the keys of a query in an order that depends
// on this query alone. So the bits of a result do not depend on other requests, on other queries of
// the same request, or on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "ceil_div.h"

namespace tinyllm {

// Rows of a decode step that are computed together, at most: all heads of one query.
inline constexpr int64_t kMaxDecodeRows = 8;
// Rows of a prefill that are computed together. Kernels may take more if there are enough parts.
inline constexpr int64_t kQueryTileRows = 192;
// The same for the matrix unit. More rows share packed keys and values, but their sums, 512 KB for
// heads of 128, must stay in the second-level cache.
inline constexpr int64_t kAmxQueryTileRows = 1024;

[[gnu::always_inline]] inline bool is_decode(const AttentionTask& t, const Request& request) {
  return request.queries <= t.decode_queries && t.heads_per_kv() <= kMaxDecodeRows;
}

// Keys of a split, as in flash-decoding. In a split the softmax weights of a row are relative to
// one maximum. The results of the splits are merged in order, whether each split is a part of its
// own or not. Splits are counted from key 0. A split takes some 10 microseconds for one query, or
// 100 for a query tile.
inline constexpr int64_t kDecodeSplit = 256;
inline constexpr int64_t kPrefillSplit = 2048;

// Rows `first` to `first + rows` of one request and key head, computed together.
struct QueryTile {
  int64_t request, kv_head, first, rows;
};

// A query tile over a range of keys. The result is final, or one of several partial results.
struct AttentionPart {
  QueryTile tile;
  KeyRange keys;
  int64_t partial_offset;  // of the partial result, in floats; -1 if the result is final
};

// A query tile whose partial results are merged. They are consecutive, in the order of the keys.
struct AttentionMerge {
  QueryTile tile;
  int64_t partial_offset, count;
};

struct AttentionPlan {
  // `max_rows` are the rows of a query tile, at most: `attention_query_tile_rows` of the kernels.
  // If it is more than kQueryTileRows, tiles have fewer rows where the threads would have too few
  // parts.
  AttentionPlan(const AttentionTask&, int64_t max_rows, int threads);

  std::vector<AttentionPart> parts;    // largest first; may be computed in any order
  std::vector<AttentionMerge> merges;  // after all parts, in any order
  int64_t partial_floats = 0;          // memory of all partial results
};

// An unnormalized result of some rows: y = values / row_sum. It points to memory of its caller,
// which has room for whole micro-tiles of rows. `width` is `padded_dim()`.
struct PartialResult {
  [[gnu::always_inline]] PartialResult(float* data, int64_t rows, int64_t width)
      : values(data),
        row_max(data + padded_rows(rows) * width),
        row_sum(row_max + padded_rows(rows)) {}

  // A micro-tile has 3 or 6 rows.
  [[gnu::always_inline]] static int64_t padded_rows(int64_t rows) { return (rows + 5) / 6 * 6; }

  // Floats of memory: whole cache lines.
  [[gnu::always_inline]] static int64_t floats(int64_t rows, int64_t width) {
    return round_up(padded_rows(rows) * (width + 2), 16);
  }

  float* values;   // rows x width: sums of e^(score - row_max) * value
  float* row_max;  // rows: the largest score, or -infinity
  float* row_sum;  // rows: sums of e^(score - row_max)
};

}  // namespace tinyllm
