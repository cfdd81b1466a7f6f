// How attention is cut into parts: by request, group of heads, queries and, where the queries are
// few, keys.
//
// A query's result is the same to the last bit whatever is computed beside it: other requests, other
// queries of its own request, on any number of threads. There are two ways to compute it: as a
// decode step, or as part of a prompt in chunks of any size, of one query too. In each of them the
// query alone decides how its keys are added up.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"

namespace tinyllm {

// Decode steps wait for memory: `attention/parts.h` computes one query at a time, if its rows are so
// few. All other queries are computed in blocks of rows: `attention/parts.h`.
inline constexpr int64_t kDecodeRows = 8;
inline constexpr int64_t kPrefillRows = 192;

inline bool decodes(const AttentionTask& t, const Request& request) {
  return request.queries <= t.decode_queries && t.group() <= kDecodeRows;
}

// Keys whose weights are relative to one score: some 10 microseconds for one query, or 100 for a
// block of rows. Spans are counted from the first key, and what was found in them is always
// folded together in their order, whether each was a part of its own or not.
inline constexpr int64_t kSpan = 256;
inline constexpr int64_t kPrefillSpan = 2048;

// Some rows of a request, all of one group of heads.
struct QueryBlock {
  int64_t request, kv_head, first, rows;
};

// A block's look at some of the keys. The result is final, or one of several partial ones.
struct AttentionPart {
  QueryBlock block;
  int64_t first, last;  // keys
  int64_t partial;      // where the partial result begins, in floats; -1 if the result is final
};

// A block whose partial results, one after the other, become final.
struct AttentionMerge {
  QueryBlock block;
  int64_t partial, count;
};

struct AttentionPlan {
  explicit AttentionPlan(const AttentionTask&);

  std::vector<AttentionPart> parts;    // in any order
  std::vector<AttentionMerge> merges;  // then these, in any order
  int64_t partials = 0;                // floats
};

// A partial result: for each row the sums of weighted values, the largest score, and the sum of the
// weights, which are relative to that score. There is room for whole tiles of rows.
struct Partial {
  Partial(float* data, int64_t rows, int64_t width)
      : sums(data), tops(data + padded(rows) * width), totals(tops + padded(rows)) {}

  static int64_t padded(int64_t rows) { return (rows + 5) / 6 * 6; }
  static int64_t size(int64_t rows, int64_t width) {
    return (padded(rows) * (width + 2) + 15) / 16 * 16;  // whole cache lines
  }

  float *sums, *tops, *totals;
};

}  // namespace tinyllm
