// Softmax weights of 32 rows over a block of keys, for products of the matrix unit.
//
// Weights are powers of two: 2^(score log2(e) - base). The base of a row is an integer, so that
// sums are rescaled exactly. It grows only if a score exceeds it by more than kBaseSlack.
#pragma once

#include <algorithm>

#include "attention/query_rows.h"
#include "attention/softmax.h"
#include "isa/tile_registers.h"
#include "isa/transpose.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(TINYLLM_TILES)

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
  uint16_t* q = nullptr;     // kSetRows x padded_dim, bfloat16
  float* scores = nullptr;   // kSetRows x kScoreStride: scores, then weights in bfloat16 in place
  float* values = nullptr;   // kSetRows x `value_stride`
  SetSums* sums = nullptr;
};

// Floats from one row of `values` to the next, which are not in the same sets of the cache.
inline int64_t value_stride(const AttentionTask& t) { return t.padded_dim() + W; }

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

// Turns the scores of a row set over a block into weights, a row at a time. So the caller can do it
// between instructions of the matrix unit, which work on another row set.
class BlockSoftmax {
 public:
  BlockSoftmax(const AttentionTask& t, const QueryTile& tile) : t_(t), tile_(tile) {}

  // `block` are the keys whose scores the row set has, in whole panels. The rows will be spread
  // over `steps` calls of `step`.
  void begin(RowSet& set, KeyRange block, int64_t steps) {
    finish();
    set_ = &set, block_ = block;
    row_ = 0, count_ = block.empty() ? 0 : set.count;
    rate_ = steps > 0 ? (static_cast<uint32_t>(count_) * kOne + steps - 1) / steps : 0;
    due_ = 0;
  }

  [[gnu::always_inline]] void step() {
    for (due_ += rate_; due_ >= kOne; due_ -= kOne) next_row();
  }

  void finish() {
    while (row_ < count_) next_row();
  }

 private:
  static constexpr uint32_t kOne = 1 << 16;

  // The keys of row n in the block, from its first key on.
  KeyRange visible(int n) const {
    const KeyRange& keys = set_->keys[n];
    return {std::clamp(keys.first, block_.first, block_.last) - block_.first,
            std::clamp(keys.last, block_.first, block_.last) - block_.first};
  }

  // A bit for each of the 32 keys from j on.
  static uint32_t visible_bits(const KeyRange& keys, int64_t j) {
    const auto below = [j](int64_t key) {
      return (uint64_t{1} << std::clamp<int64_t>(key - j, 0, kPanelBits)) - 1;
    };
    return static_cast<uint32_t>(below(keys.last) & ~below(keys.first));
  }

  float* scores(int n) const { return set_->scores + n * kScoreStride; }

  [[gnu::noinline]] void next_row() {
    if (row_ >= count_) return;
    if (row_ % W == 0) update_bases();
    const KeyRange keys = visible(row_);
    const float base = set_->sums->base[row_];
    const Floats shift = splat(softmax_shift(base)), factor = splat(factor_);
    const auto ones = bit_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    float* from = scores(row_);
    auto* to = reinterpret_cast<uint16_t*>(from);
    __m512 sum = _mm512_setzero_ps();
    const auto weigh = [&](int64_t j, uint32_t bits) __attribute__((always_inline)) {
      const Floats a = power_of_two(load(from + j) * factor - shift);
      const Floats b = power_of_two(load(from + j + W) * factor - shift);
      auto rounded =
          bit_cast<__m512i>(_mm512_cvtne2ps_pbh(bit_cast<__m512>(b), bit_cast<__m512>(a)));
      if (bits != ~0u) rounded = _mm512_maskz_mov_epi16(bits, rounded);
      sum = _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(rounded), ones);
      _mm512_store_si512(to + j, rounded);
    };
    const int64_t count = block_.count();
    int64_t j = 0;
    for (; j < count && j + kPanelBits <= keys.first; j += kPanelBits) store_zeros(to + j);
    if (j < keys.first) weigh(j, visible_bits(keys, j)), j += kPanelBits;
    for (; j + kPanelBits <= keys.last; j += kPanelBits) weigh(j, ~0u);
    if (j < keys.last) weigh(j, visible_bits(keys, j)), j += kPanelBits;
    for (; j < count; j += kPanelBits) store_zeros(to + j);
    set_->sums->weights[row_] += bit_cast<Floats>(sum);
    ++row_;
  }

  static void store_zeros(uint16_t* to) { _mm512_store_si512(to, _mm512_setzero_si512()); }

  // Raises the bases of rows `row_` to `row_ + W` to the scores of the block, if necessary.
  void update_bases() {
    factor_ = std::abs(t_.scale) * kLog2E;
    if (t_.mask) apply_mask();
    Words maxima[W];
    for (int i = 0; i < W; ++i) {
      const KeyRange keys = visible(row_ + i);
      const float* from = scores(row_ + i);
      Floats a = splat(kMinusInfinity), b = a;  // max(x, a) skips NaN
      int64_t j = keys.first / kPanelBits * kPanelBits;
      for (; j < keys.last; j += kPanelBits) {
        const uint32_t bits = visible_bits(keys, j);
        Floats x = load(from + j), y = load(from + j + W);
        if (bits != ~0u) {
          x = masked(x, static_cast<__mmask16>(bits));
          y = masked(y, static_cast<__mmask16>(bits >> W));
        }
        a = max(x, a), b = max(y, b);
      }
      maxima[i] = bit_cast<Words>(max(a, b));
    }
    transpose(maxima);
    Floats largest = bit_cast<Floats>(maxima[0]);
    for (int i = 1; i < W; ++i) largest = max(bit_cast<Floats>(maxima[i]), largest);
    const __m512 high =
        _mm512_roundscale_ps(bit_cast<__m512>(largest * factor_), _MM_FROUND_TO_POS_INF | 8);
    SetSums& sums = *set_->sums;
    const __m512 base = _mm512_load_ps(sums.base + row_);
    const __mmask16 grows =
        _mm512_cmp_ps_mask(high, _mm512_add_ps(base, _mm512_set1_ps(kBaseSlack)), _CMP_GT_OQ);
    if (!grows) return;
    _mm512_mask_store_ps(sums.base + row_, grows, high);
    if (sums.is_empty) return;
    alignas(64) float factors[W];
    _mm512_store_ps(factors, _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_sub_ps(base, high)));
    for (uint32_t rows = grows; rows; rows &= rows - 1) {
      const int i = std::countr_zero(rows), n = row_ + i;
      float* values = set_->values + n * value_stride(t_);
      for (int64_t d = 0; d < t_.padded_dim(); d += W) {
        store(values + d, load(values + d) * factors[i]);
      }
      sums.weights[n] *= factors[i];
    }
  }

  static Floats masked(Floats v, __mmask16 kept) {
    return bit_cast<Floats>(
        _mm512_mask_mov_ps(_mm512_set1_ps(kMinusInfinity), kept, bit_cast<__m512>(v)));
  }

  // Scales the scores of W rows and adds the mask.
  [[gnu::noinline]] void apply_mask() {
    factor_ = kLog2E;
    for (int n = row_; n < std::min(row_ + W, count_); ++n) {
      const KeyRange keys = visible(n);
      if (keys.empty()) continue;
      float* from = scores(n);
      for (int64_t j = keys.first / W * W; j < keys.last; j += W) {
        store(from + j, load(from + j) * std::abs(t_.scale));
      }
      add_mask(t_, tile_, set_->first + n,
               {block_.first + keys.first, block_.first + keys.last}, from + keys.first);
    }
  }

  static constexpr int64_t kPanelBits = 32;  // keys of a panel

  const AttentionTask& t_;
  const QueryTile& tile_;
  RowSet* set_ = nullptr;
  KeyRange block_{0, 0};
  float factor_ = 0;
  int row_ = 0, count_ = 0;
  uint32_t rate_ = 0, due_ = 0;
};

#endif  // TINYLLM_TILES

}  // namespace tinyllm::TINYLLM_TIER
