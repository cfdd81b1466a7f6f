// softmax(q k^T * scale + mask) v, by groups of heads, for one request or many.
//
// Query heads that share a key head are computed together, so that each key and value is read once
// for all of them: row n of a request is query n / G of the n % G-th head of its group of G.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "types.h"

namespace tinyllm {

// Keys, or values: pages of rows of D numbers, dense or packed as a weight is. A cache without
// pages is one page for each request.
struct KeyValues {
  // Where a part of the rows lies; strides, in bytes, are those of page, head and token.
  struct Part {
    const char* data = nullptr;
    int64_t strides[3] = {};

    int64_t offset(int64_t page, int64_t head, int64_t token) const {
      return page * strides[0] + head * strides[1] + token * strides[2];
    }
    const char* at(int64_t page, int64_t head, int64_t token) const {
      return data + offset(page, head, token);
    }
  };

  Part codes;           // numbers, where they are dense
  Part scales, biases;  // as in `Weights`
  Mode mode = Mode::dense;
  Type type = Type::float32;  // of the numbers, or of the scales
  int bits = 0, group = 0;

  // The group of a feature: groups have 2^n numbers.
  int64_t group_of(int64_t feature) const {
    return feature >> std::countr_zero(static_cast<unsigned>(group));
  }
};

struct AttentionTask {
  const void* q = nullptr;
  void* y = nullptr;
  int64_t q_strides[3] = {}, y_strides[3] = {};  // of request, head and query, in numbers
  KeyValues k, v;
  Type type = Type::float32;  // of q and y
  int64_t requests = 0, heads = 0, kv_heads = 0, dim = 0;
  int64_t length = 0, keys = 0;  // of each request
  // Where keys are in pages: the queries of request r stand one after the other, from query_starts[r]
  // to query_starts[r + 1]; it has context_lengths[r] keys, of which the first `page` are in page
  // block_table[r * blocks], the next in the page that is named after it, and so on.
  const int32_t* query_starts = nullptr;
  const int32_t* context_lengths = nullptr;
  const int32_t* block_table = nullptr;
  int64_t blocks = 0, page = 0;
  int64_t tokens = 0, pages = 0;  // T and P
  float scale = 1;
  bool causal = false;           // key j is seen by query i where j <= i + S - L;
  int64_t window = 0;            // unless this is 0, of those only the last `window` are
  int64_t decode_queries = 1;    // requests of up to so many queries are decode steps
  const void* mask = nullptr;    // added to the scores, or null
  int64_t mask_strides[4] = {};  // of request, head, query and key; 0 where it is broadcast
  Type mask_type = Type::float32;

  int64_t group() const { return heads / kv_heads; }

  // D, rounded up to whole vectors of any instruction set, of pairs too.
  int64_t width() const { return (dim + 31) / 32 * 32; }
};

// One request of a task. Numbers from arrays are clamped, so that no query or key outside the arrays
// is accessed.
struct Request {
  Request(const AttentionTask& t, int64_t index) : queries(t.length), keys(t.keys) {
    if (!t.block_table) return;
    first = std::clamp<int64_t>(t.query_starts[index], 0, t.tokens);
    queries = std::clamp<int64_t>(t.query_starts[index + 1], first, t.tokens) - first;
    const int64_t most = t.pages > 0 ? t.blocks * t.page : 0;
    keys = std::clamp<int64_t>(t.context_lengths[index], 0, most);
  }

  int64_t first = 0;  // row of q, where those of all requests stand one after the other
  int64_t queries, keys;
};

// The keys that a query sees: from the first to before the last.
struct Seen {
  Seen(const AttentionTask& t, const Request& request, int64_t query) {
    const int64_t end = query + request.keys - request.queries + 1;
    last = t.causal ? std::clamp<int64_t>(end, 0, request.keys) : request.keys;
    first = t.window ? std::clamp<int64_t>(end - t.window, 0, last) : 0;
  }

  int64_t first, last;
};

}  // namespace tinyllm
