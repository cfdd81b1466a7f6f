// Attention tasks: y = softmax(q k^T scale + mask) v for one or many requests.
//
// Query heads that share a key head are computed together, so that each key and value is read once
// for all of them. With G query heads for each key head, a query has G rows. Row n of a request and
// key head is query n / G of query head n % G.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "ceil_div.h"
#include "types.h"

namespace tinyllm {

// The keys, or the values, of a KV cache: pages of rows of D numbers, dense or quantized as a
// weight is. A cache without pages has one page for each request. It owns no memory.
struct KeyValues {
  // An array with one row for each page, head and token. Rows are contiguous.
  struct StridedRows {
    const char* data = nullptr;
    int64_t strides[3] = {};  // of page, head and token, in bytes

    [[gnu::always_inline]] int64_t offset(int64_t page, int64_t head, int64_t token) const {
      return page * strides[0] + head * strides[1] + token * strides[2];
    }
    [[gnu::always_inline]] const char* at(int64_t page, int64_t head, int64_t token) const {
      return data + offset(page, head, token);
    }
  };

  StridedRows codes;           // codes, or the numbers of a dense cache
  StridedRows scales, biases;  // as in `Weights`
  Mode mode = Mode::dense;
  Type type = Type::float32;  // of the numbers of a dense cache, or of the scales
  int bits = 0, group = 0;    // of a quantized cache; the group is a power of two

  // The quantization group of a feature.
  [[gnu::always_inline]] int64_t group_of(int64_t feature) const {
    return feature >> std::countr_zero(static_cast<unsigned>(group));
  }
};

// B requests with H query heads and Hkv key heads of D features. Without pages each request has L
// queries and S keys. It owns no memory.
struct AttentionTask {
  const void* q = nullptr;  // B H L D, or T H D with pages; rows of D numbers are contiguous
  void* y = nullptr;        // as q
  int64_t q_strides[3] = {}, y_strides[3] = {};  // of request, head and query, in numbers
  KeyValues k, v;
  Type type = Type::float32;                               // of q and y
  int64_t requests = 0, heads = 0, kv_heads = 0, dim = 0;  // B, H, Hkv, D
  int64_t length = 0, keys = 0;                            // L and S; unused with pages
  // With pages: request r has the queries cu_seqlens_q[r] to cu_seqlens_q[r + 1] of T, and
  // seq_lens[r] keys. Row r of the block table names the pages of its keys, in order.
  const int32_t* cu_seqlens_q = nullptr;  // B + 1
  const int32_t* seq_lens = nullptr;      // B
  const int32_t* block_tables = nullptr;   // B block_table_width; null without pages
  int64_t block_table_width = 0;          // pages of a request, at most
  int64_t page_size = 0;                  // tokens in a page
  int64_t tokens = 0;                     // T
  int64_t pages = 0;                      // pages that exist
  float scale = 1;
  bool causal = false;           // query i attends to the keys j <= i + S - L
  int64_t window = 0;            // if not 0: only to the keys j > i + S - L - window
  int64_t decode_queries = 1;    // a request of at most this number of queries is a decode step
  const void* mask = nullptr;    // B H L S, added to the scores, or null
  int64_t mask_strides[4] = {};  // in numbers; 0 on broadcast axes
  Type mask_type = Type::float32;

  // G, the query heads that share a key head.
  [[gnu::always_inline]] int64_t heads_per_kv() const { return heads / kv_heads; }

  // D, rounded up to pairs of whole vectors of any instruction set.
  [[gnu::always_inline]] int64_t padded_dim() const { return round_up(dim, 32); }
};

// One request of a task. Its entries of `cu_seqlens_q` and `seq_lens` are clamped, so that no query
// or key outside the arrays is accessed.
struct Request {
  [[gnu::always_inline]] Request(const AttentionTask& t, int64_t index)
      : queries(t.length), keys(t.keys) {
    if (!t.block_tables) return;
    first_query = std::clamp<int64_t>(t.cu_seqlens_q[index], 0, t.tokens);
    queries = std::clamp<int64_t>(t.cu_seqlens_q[index + 1], first_query, t.tokens) - first_query;
    const int64_t max_keys = t.pages > 0 ? t.block_table_width * t.page_size : 0;
    keys = std::clamp<int64_t>(t.seq_lens[index], 0, max_keys);
  }

  int64_t first_query = 0;  // of T; 0 without pages
  int64_t queries, keys;
};

// Keys `first` to `last` of a request, without `last`.
struct KeyRange {
  int64_t first, last;

  [[gnu::always_inline]] int64_t count() const { return last - first; }
  [[gnu::always_inline]] bool empty() const { return first >= last; }
  [[gnu::always_inline]] bool contains(int64_t key) const { return first <= key && key < last; }
};

// The keys that a query of a request attends to.
[[gnu::always_inline]] inline KeyRange visible_keys(const AttentionTask& t, const Request& request,
                                                    int64_t query) {
  const int64_t causal_end = query + request.keys - request.queries + 1;
  const int64_t last = t.causal ? std::clamp<int64_t>(causal_end, 0, request.keys) : request.keys;
  const int64_t first = t.window ? std::clamp<int64_t>(causal_end - t.window, 0, last) : 0;
  return {first, last};
}

}  // namespace tinyllm
