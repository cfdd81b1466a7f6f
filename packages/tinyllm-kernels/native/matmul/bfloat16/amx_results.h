// The results of a micro-tile on the matrix unit, rounded and stored to y.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "isa/load_store.h"
#include "matmul/bfloat16/amx_weight_tiles.h"
#include "matmul/linear.h"
#include "rows/silu.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kSumColumns = 2 * kTileRows;  // of the sums of a micro-tile: 32 tokens x 32

// Loads up to 16 numbers of bfloat16 as floats.
inline Floats load_some(const BFloat16* from, __mmask16 mask) {
  const __m256i numbers = _mm256_maskz_loadu_epi16(mask, from);
  return bit_cast<Floats>(widen(bit_cast<Shorts>(numbers)) << 16);
}

inline void store_some(BFloat16* to, __mmask16 mask, Floats v) {
  _mm256_mask_storeu_epi16(to, mask, bit_cast<__m256i>(round_to_bfloat16(v)));
}

// The results of one micro-tile: sums of up to 32 tokens from `token` on and up to 32 rows of w
// from `row` on. They are rounded and stored token by token, while the matrix unit computes the
// next micro-tile.
class AmxResults {
 public:
  AmxResults() = default;

  // `sums` has kSumColumns sums for each token.
  AmxResults(const LinearTask& t, int64_t token, int64_t tokens, int64_t row, const float* sums)
      : left_(tokens), sums_(sums), y_stride_(t.y_stride), residual_stride_(t.w->rows) {
    const int64_t rows = t.w->rows - row;
    is_gated_ = t.up;
    masks_[0] = mask_of(rows);
    masks_[1] = mask_of(rows - kTileRows);
    y_ = static_cast<BFloat16*>(t.y) + token * y_stride_ + row;
    if (t.bias) bias_ = static_cast<const BFloat16*>(t.bias) + row;
    if (t.residual) {
      residual_ = static_cast<const BFloat16*>(t.residual) + token * residual_stride_ + row;
    }
  }

  // Stores the results of up to `tokens` more tokens.
  [[gnu::always_inline]] void store(int64_t tokens) {
    for (; tokens > 0 && left_ > 0; --tokens) store_token();
  }

  [[gnu::always_inline]] void store_all() { store(left_); }

 private:
  static __mmask16 mask_of(int64_t numbers) {
    return static_cast<__mmask16>((1u << std::clamp<int64_t>(numbers, 0, W)) - 1);
  }

  [[gnu::always_inline]] void store_token() {
    Floats first = load(sums_), second = load(sums_ + W);
    if (is_gated_) {
      // Both products are rounded first, as separate products are.
      first = rounded(first), second = rounded(second);
      store_some(y_, masks_[0], silu(first) * second);
    } else {
      if (bias_) first += load_some(bias_, masks_[0]), second += load_some(bias_ + W, masks_[1]);
      if (residual_) {
        first += load_some(residual_, masks_[0]), second += load_some(residual_ + W, masks_[1]);
        residual_ += residual_stride_;
      }
      const __m512i both = bit_cast<__m512i>(to_bfloat16_pairs(first, second));
      _mm512_mask_storeu_epi16(y_, masks_[0] | static_cast<__mmask32>(masks_[1]) << W, both);
    }
    sums_ += kSumColumns;
    y_ += y_stride_;
    --left_;
  }

  static Floats rounded(Floats v) { return bit_cast<Floats>(widen(round_to_bfloat16(v)) << 16); }

  int64_t left_ = 0;  // tokens that are not stored yet
  const float* sums_ = nullptr;
  int64_t y_stride_ = 0, residual_stride_ = 0;
  bool is_gated_ = false;
  __mmask16 masks_[2] = {};  // rows of w that exist
  BFloat16* y_ = nullptr;
  const BFloat16* bias_ = nullptr;
  const BFloat16* residual_ = nullptr;
};

}  // namespace tinyllm::TINYLLM_ISA
