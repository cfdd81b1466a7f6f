// Softmax weights of 32 rows over a block of keys, for products of the matrix unit.
//
// Weights are powers of two: 2^(score log2(e) - base). The base of a row is an integer, so that
// sums are rescaled exactly. It grows only if a score exceeds it by more than kBaseSlack.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/query_rows.h"
#include "attention/softmax.h"
#include "isa/tile_registers.h"

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_AMX)

inline constexpr int kSetRows = 32;
inline constexpr int64_t kBlockKeys = 256;  // 32 rows of scores take 32 KB
// Floats from one row of scores to the next. Rows that are 1 KB apart would share sets of the cache.
inline constexpr int64_t kScoreStride = kBlockKeys + W;
inline constexpr float kBaseSlack = 6;
inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// The sums of the rows of a set over the keys so far.
struct SetSums {
  alignas(64) float base[kSetRows];
  Floats weights[kSetRows];  // lane by lane
  bool is_empty;             // `values` is not initialized
};

// 32 consecutive rows of a query tile. The last set of a tile may have fewer rows.
struct RowSet {
  int64_t first = 0;         // of the query tile
  int count = 0;             // rows
  KeyRange keys[kSetRows]{};  // of each row; empty for missing rows
  KeyRange any{0, 0};        // from the first key of any row to the last key of any row
  KeyRange all{0, 0};        // keys that all rows attend to
  uint16_t* q = nullptr;     // kSetRows x padded_dim, bfloat16
  float* scores = nullptr;   // kSetRows x kScoreStride: scores, then weights in bfloat16 in place
  float* values = nullptr;   // kSetRows x `value_stride`
  SetSums* sums = nullptr;
};

// Floats from one row of `values` to the next, which are not in the same sets of the cache.
inline int64_t value_stride(int64_t width) { return width + W; }

// 2^x with a relative error of 8e-5. Below 2^-126 the result is zero. NaN stays NaN.
inline Floats power_of_two(Floats x) {
  const __m512 v = bit_cast<__m512>(x);
  const __mmask16 normal = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-126), _CMP_NLT_UQ);
  const Floats r = bit_cast<Floats>(_mm512_reduce_ps(v, _MM_FROUND_TO_NEG_INF | 8));
  Floats p = splat(0.07802452f);
  p = p * r + 0.22606716f;
  p = p * r + 0.69583353f;
  p = p * r + 0.99992522f;
  return bit_cast<Floats>(_mm512_maskz_scalef_ps(normal, bit_cast<__m512>(p), v));
}

// Turns the scores of a row set over a block into weights, 32 keys of a row at a time. So the
// caller can do it between the products of the matrix unit, which work on another row set.
//
// The processor looks ahead a few hundred instructions. If the instructions here are spread evenly
// over the products, it computes both at once. A row at a time, the matrix unit would wait.
//
// A loop of products copies an object of this class to a local variable, because the compiler
// assumes that tile instructions change other memory.
class BlockSoftmax {
 public:
  BlockSoftmax(const AttentionTask& t, const QueryTile& tile)
      : t_(&t), tile_(&tile), factor_((scales_in_place(t) ? 1 : std::abs(t.scale)) * kLog2E) {}

  // `block` are the keys whose scores the row set has, in whole panels.
  void begin(RowSet& set, KeyRange block) {
    set_ = &set, columns_ = block.count();
    row_ = 0, rows_ = block.empty() ? 0 : set.count;
    if (rows_ == 0) return;
    if (t_->mask || block.first < set.all.first || block.last > set.all.last) {
      for (int n = 0; n < rows_; ++n) hide_scores(*t_, *tile_, set, n, block);
    }
    for (int n = 0; n < std::min(kRowsAhead, rows_); ++n) {
      maxima_ = splat(kMinusInfinity);
      const float* scores = set.scores + n * kScoreStride;
      for (int64_t j = 0; j < columns_; j += kPieceKeys) add_maxima(scores + j);
      raise_base(n);
    }
    begin_row();
  }

  // Computes the next 32 weights, if there are more.
  [[gnu::always_inline]] void step() {
    if (row_ < rows_) next_piece();
  }

  void finish() {
    while (row_ < rows_) next_piece();
  }

 private:
  // True if scores are scaled before they become weights: for a mask, which is added to scaled
  // scores. A scale of zero has zero as queries.
  static bool scales_in_place(const AttentionTask& t) { return t.mask || t.scale == 0; }

  static constexpr int64_t kPieceKeys = 32;
  // The base of a row is known this many rows earlier, so that no weight waits for it.
  static constexpr int kRowsAhead = 2;

  [[gnu::always_inline]] void begin_row() {
    scores_ = set_->scores + row_ * kScoreStride;
    ahead_ = row_ + kRowsAhead < rows_ ? scores_ + kRowsAhead * kScoreStride : scores_;
    shift_ = splat(softmax_shift(set_->sums->base[row_]));
    sum_ = _mm512_setzero_ps();
    maxima_ = splat(kMinusInfinity);
    column_ = 0;
  }

  [[gnu::always_inline]] void next_piece() {
    add_maxima(ahead_ + column_);
    const Floats factor = splat(factor_);
    const Floats a = power_of_two(load(scores_ + column_) * factor - shift_);
    const Floats b = power_of_two(load(scores_ + column_ + W) * factor - shift_);
    const Words weights = to_bfloat16_pairs(a, b);
    const auto ones = bit_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    sum_ = _mm512_dpbf16_ps(sum_, bit_cast<__m512bh>(weights), ones);
    _mm512_store_si512(reinterpret_cast<uint16_t*>(scores_) + column_, bit_cast<__m512i>(weights));
    column_ += kPieceKeys;
    if (column_ < columns_) return;
    set_->sums->weights[row_] += bit_cast<Floats>(sum_);
    if (row_ + kRowsAhead < rows_) raise_base(row_ + kRowsAhead);
    if (++row_ < rows_) begin_row();
  }

  [[gnu::always_inline]] void add_maxima(const float* scores) {
    maxima_ = max(load(scores + W), max(load(scores), maxima_));  // skips NaN
  }

  // Raises the base of row n to `maxima_`, if necessary.
  [[gnu::always_inline]] void raise_base(int n) const {
    const Floats limit = splat(set_->sums->base[n] + kBaseSlack);
    if (_mm512_cmp_ps_mask(bit_cast<__m512>(maxima_ * splat(factor_)), bit_cast<__m512>(limit),
                           _CMP_GT_OQ)) {
      set_base(*set_, n, std::ceil(largest_lane(maxima_) * factor_), t_->padded_dim());
    }
  }

  [[gnu::noinline]] static void set_base(RowSet& set, int n, float base, int64_t width) {
    SetSums& sums = *set.sums;
    const float before = std::exchange(sums.base[n], base);
    if (sums.is_empty) return;
    const auto ratio =
        bit_cast<Floats>(_mm512_scalef_ps(_mm512_set1_ps(1), _mm512_set1_ps(before - base)));
    float* values = set.values + n * value_stride(width);
    for (int64_t d = 0; d < width; d += W) store(values + d, load(values + d) * ratio);
    sums.weights[n] *= ratio;
  }

  // Adds the mask to the scores of row n. Scores of keys that the row does not attend to, which may
  // be any number, become -infinity: their weights are zero.
  [[gnu::noinline]] static void hide_scores(const AttentionTask& t, const QueryTile& tile,
                                            const RowSet& set, int n, KeyRange block) {
    const int64_t count = block.count();
    const int64_t first = std::clamp<int64_t>(set.keys[n].first - block.first, 0, count);
    const int64_t last = std::clamp<int64_t>(set.keys[n].last - block.first, first, count);
    float* scores = set.scores + n * kScoreStride;
    if (t.mask && first < last) {
      for (int64_t j = first / W * W; j < last; j += W) {
        store(scores + j, load(scores + j) * std::abs(t.scale));
      }
      add_mask(t, tile, set.first + n, {block.first + first, block.first + last}, scores + first);
    }
    std::fill(scores, scores + first, kMinusInfinity);
    std::fill(scores + last, scores + count, kMinusInfinity);
  }

  const AttentionTask* t_;
  const QueryTile* tile_;
  float factor_;
  RowSet* set_ = nullptr;
  int64_t columns_ = 0;  // keys of the block
  int row_ = 0, rows_ = 0;
  // Of the row:
  float* scores_ = nullptr;
  int64_t column_ = 0;  // of the next piece
  Floats shift_{};
  __m512 sum_{};  // of the weights, lane by lane
  // Of the row that is kRowsAhead further, if there is one:
  const float* ahead_ = nullptr;
  Floats maxima_{};  // of the scores, lane by lane
};

#endif  // TINYLLM_AMX

}  // namespace tinyllm::TINYLLM_ISA
