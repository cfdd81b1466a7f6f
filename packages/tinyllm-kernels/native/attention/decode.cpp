// Attention of a decode step: one query over one split of its keys.
//
// Three passes: scores of all keys, softmax weights, weighted sums of all values. Every row (a head
// of the query) attends to every key of the part.
#include <algorithm>

#include "attention/decode/products.h"
#include "attention/decode/quantized.h"
#include "attention/decode/stream.h"
#include "attention/parts.h"
#include "attention/query_rows.h"
#include "attention/softmax.h"
#include "ceil_div.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

struct Decode {
  const AttentionTask& t;
  const AttentionPart& part;
  const DecodeStream& stream;
  float* unpacked;  // kRowBatch rows: keys or values that cannot be read in place
  float* q;         // rows x padded_dim: scaled queries
  float* scores;    // rows x kDecodeSplit: scores, then weights
  float* integers;  // memory of `IntegerKeys`, then of `IntegerValues`

  int64_t rows() const { return part.tile.rows; }

  // D in whole vectors. Rows that end within a vector were unpacked and are padded with zeros.
  int64_t vector_dim() const { return round_up(t.dim, W); }

  // True if keys or values are floats in even-odd order, and queries or sums have the same order.
  bool has_even_odd_order(const KeyValues& kv) const {
    return reads_even_odd(kv) && !decodes_integers(t, kv);
  }

  // Calls `each(first, count)` for batches of the keys of the part.
  template <typename Each>
  void for_batches(Each each) const {
    for (int64_t first = 0; first < part.keys.count(); first += kRowBatch) {
      each(first, std::min(kRowBatch, part.keys.count() - first));
    }
  }

  // Calls `each(format, rows)` with a batch of keys or values.
  template <typename Each>
  void with_rows(const KeyValues& kv, int64_t first, int64_t count, Each each) const {
    const QueryTile& tile = part.tile;
    const RowPointers rows(t, kv, tile.request, tile.kv_head, part.keys.first + first, count);
    if (has_even_odd_order(kv)) return each(EvenOddRows(), rows);
    with_fast_rows(t, kv, rows, count, W, unpacked, each);
  }
};

void score_floats(const Decode& work, int64_t first, int64_t count) {
  const int64_t width = work.t.padded_dim(), dim = work.vector_dim();
  const KeyValues& k = work.t.k;
  work.with_rows(k, first, count, [&]<typename Rows>(Rows, const RowPointers& keys) {
    for_key_blocks(count, [&]<int N>(int64_t j, std::integral_constant<int, N>) {
      for (int n = 0; n < N; ++n) work.stream.fetch<Rows>(keys, j + n, first + j + n, dim);
      for_row_tiles(work.rows(), [&]<int R>(int64_t row, std::integral_constant<int, R>) {
        score_keys<Rows, R, N>(k, keys, j, dim, work.q + row * width, width,
                               work.scores + row * kDecodeSplit + first);
      });
    });
  });
}

void compute_scores(const Decode& work) {
  if (decodes_integers(work.t, work.t.k)) {
    const IntegerKeys keys(work.t, work.part, work.stream, work.q, work.integers);
    work.for_batches([&](int64_t first, int64_t count) { keys.score(first, count, work.scores); });
  } else {
    work.for_batches([&](int64_t first, int64_t count) { score_floats(work, first, count); });
  }
}

void compute_weights(const Decode& work, PartialResult& result) {
  const KeyRange& keys = work.part.keys;
  for (int64_t n = 0; n < work.rows(); ++n) {
    float* scores = work.scores + n * kDecodeSplit;
    if (work.t.mask) add_mask(work.t, work.part.tile, n, keys, scores);
    result.row_max[n] = max_score(scores, keys.count(), kMinusInfinity);
    result.row_sum[n] = exp_scores(scores, keys.count(), softmax_shift(result.row_max[n]));
  }
}

void add_floats(const Decode& work, int64_t first, int64_t count, PartialResult& result) {
  const int64_t width = work.t.padded_dim(), dim = work.vector_dim();
  const KeyValues& v = work.t.v;
  work.with_rows(v, first, count, [&]<typename Rows>(Rows, const RowPointers& rows) {
    const ValueRows values{v, rows, dim};
    for_key_blocks(count, [&]<int N>(int64_t j, std::integral_constant<int, N>) {
      const int64_t index = work.stream.first_value() + first + j;
      for (int n = 0; n < N; ++n) work.stream.fetch<Rows>(rows, j + n, index + n, dim);
      for_row_tiles(work.rows(), [&]<int R>(int64_t row, std::integral_constant<int, R>) {
        accumulate_values<Rows, R, N>(values, j, work.scores + row * kDecodeSplit + first,
                                      result.values + row * width, width);
      });
    });
  });
}

void sum_values(const Decode& work, PartialResult& result) {
  std::fill_n(result.values, work.rows() * work.t.padded_dim(), 0.0f);
  if (decodes_integers(work.t, work.t.v)) {
    const IntegerValues values(work.t, work.part, work.stream, work.integers);
    work.for_batches([&](int64_t first, int64_t count) {
      values.add(first, count, work.scores, result.values);
    });
  } else {
    work.for_batches([&](int64_t first, int64_t count) { add_floats(work, first, count, result); });
  }
}

}  // namespace

int64_t decode_scratch(const AttentionTask& t) {
  return kRowBatch * t.padded_dim() + kMaxDecodeRows * (t.padded_dim() + kDecodeSplit) +
         std::max(IntegerKeys::floats(t), IntegerValues::floats(t));
}

void decode_part(const AttentionTask& t, const AttentionPart& part, const AttentionPart* next,
                 PartialResult& result, float* scratch) {
  const int64_t width = t.padded_dim(), features = part.tile.rows * width;
  float* q = scratch + kRowBatch * width;
  float* scores = q + kMaxDecodeRows * width;
  const DecodeStream stream(t, part, next);
  const Decode work{t, part, stream, scratch, q, scores, scores + kMaxDecodeRows * kDecodeSplit};
  load_queries(t, part.tile, t.scale, q);
  if (work.has_even_odd_order(t.k)) to_even_odd_order(q, features);
  compute_scores(work);
  compute_weights(work, result);
  sum_values(work, result);
  if (work.has_even_odd_order(t.v)) from_even_odd_order(result.values, features);
}

}  // namespace tinyllm::TINYLLM_ISA
