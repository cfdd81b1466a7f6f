// Attention of a decode step: one query over one split of its keys.
//
// Three passes: scores of all keys, softmax weights, weighted sums of all values. Every row (a head
// of the query) attends to every key of the part.
#include <algorithm>

#include "attention/decode_products.h"
#include "attention/decode_stream.h"
#include "attention/parts.h"
#include "attention/query_rows.h"
#include "attention/softmax.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

struct Decode {
  const AttentionTask& t;
  const AttentionPart& part;
  const DecodeStream& stream;
  float* unpacked;  // kRowBatch rows: keys or values that cannot be read in place
  float* q;         // rows x padded_dim: scaled queries
  float* scores;    // rows x kDecodeSplit: scores, then weights

  int64_t rows() const { return part.tile.rows; }

  // D in whole vectors. Rows that end within a vector were unpacked and are padded with zeros.
  int64_t vector_dim() const { return (t.dim + W - 1) / W * W; }

  // Calls `each(format, rows, first, count)` for batches of rows of keys or values. `first` is
  // relative to the first key of the part.
  template <typename Each>
  void for_row_batches(const KeyValues& kv, Each each) const {
    const QueryTile& tile = part.tile;
    for (int64_t j = 0; j < part.keys.count(); j += kRowBatch) {
      const int64_t count = std::min(kRowBatch, part.keys.count() - j);
      const RowPointers rows(t, kv, tile.request, tile.kv_head, part.keys.first + j, count);
      if (reads_even_odd(kv)) {
        each(EvenOddRows(), rows, j, count);
      } else {
        with_fast_rows(t, kv, rows, count, W, unpacked, [&](auto format, const RowPointers& fast) {
          each(format, fast, j, count);
        });
      }
    }
  }
};

void compute_scores(const Decode& work) {
  const int64_t width = work.t.padded_dim(), dim = work.vector_dim();
  const KeyValues& k = work.t.k;
  work.for_row_batches(
      k, [&]<typename Rows>(Rows, const RowPointers& keys, int64_t first, int64_t count) {
        for_key_blocks(count, [&]<int N>(int64_t j, std::integral_constant<int, N>) {
          for (int n = 0; n < N; ++n) work.stream.fetch<Rows>(keys, j + n, first + j + n, dim);
          for_row_tiles(work.rows(), [&]<int R>(int64_t row, std::integral_constant<int, R>) {
            score_keys<Rows, R, N>(k, keys, j, dim, work.q + row * width, width,
                                   work.scores + row * kDecodeSplit + first);
          });
        });
      });
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

void sum_values(const Decode& work, PartialResult& result) {
  const int64_t width = work.t.padded_dim(), dim = work.vector_dim();
  const KeyValues& v = work.t.v;
  const int64_t key_count = work.part.keys.count();
  std::fill_n(result.values, work.rows() * width, 0.0f);
  work.for_row_batches(
      v, [&]<typename Rows>(Rows, const RowPointers& rows, int64_t first, int64_t count) {
        const ValueRows values{v, rows, dim};
        for_key_blocks(count, [&]<int N>(int64_t j, std::integral_constant<int, N>) {
          const int64_t index = key_count + first + j;  // of the first value in the stream
          for (int n = 0; n < N; ++n) work.stream.fetch<Rows>(rows, j + n, index + n, dim);
          for_row_tiles(work.rows(), [&]<int R>(int64_t row, std::integral_constant<int, R>) {
            accumulate_values<Rows, R, N>(values, j, work.scores + row * kDecodeSplit + first,
                                          result.values + row * width, width);
          });
        });
      });
}

}  // namespace

int64_t decode_scratch(const AttentionTask& t) {
  return kRowBatch * t.padded_dim() + kMaxDecodeRows * (t.padded_dim() + kDecodeSplit);
}

void decode_part(const AttentionTask& t, const AttentionPart& part, const AttentionPart* next,
                 PartialResult& result, float* scratch) {
  const int64_t width = t.padded_dim(), features = part.tile.rows * width;
  float* q = scratch + kRowBatch * width;
  float* scores = q + kMaxDecodeRows * width;
  const DecodeStream stream(t, part, next);
  const Decode work{t, part, stream, scratch, q, scores};
  load_queries(t, part.tile, t.scale, q);
  if (reads_even_odd(t.k)) to_even_odd_order(q, features);
  compute_scores(work);
  compute_weights(work, result);
  sum_values(work, result);
  if (reads_even_odd(t.v)) from_even_odd_order(result.values, features);
}

}  // namespace tinyllm::TINYLLM_ISA
