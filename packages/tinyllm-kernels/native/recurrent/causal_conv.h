// The causal convolution of some channels of a sequence.
#pragma once

#include <cstring>

#include "isa/load_store.h"
#include "recurrent/segments.h"
#include "rows/silu.h"

namespace tinyllm::TINYLLM_TIER {

// Channels `first` to `first + count` of the inputs of a sequence.
template <typename T>
class ConvChannels {
 public:
  // Numbers of `history` for `count` channels.
  static int64_t history_size(const CausalConvTask& t, int64_t count) {
    return (t.width - 1) * count;
  }

  // Copies the inputs before the sequence to `history`: their slot may be written before they are
  // read for the last time.
  ConvChannels(const CausalConvTask& t, const SequenceTokens& tokens, int64_t first, int64_t count,
               T* history)
      : t_(t), tokens_(tokens), first_(first), count_(count), history_(history) {
    for (int64_t row = 0; row < t.width - 1; ++row) {
      T* to = history + row * count;
      if (tokens.load < 0) {
        std::fill(to, to + count, T{});
      } else {
        std::memcpy(to, slot_row(tokens.load, row), count * sizeof(T));
      }
    }
  }

  // Writes the results of a token to `y`.
  void convolve(int64_t token, T* y) const {
    const T* rows[kMaxConvWidth];
    for (int64_t j = 0; j < t_.width; ++j) rows[j] = input(token - (t_.width - 1) + j);
    const float* taps = t_.taps + first_;
    int64_t c = 0;
    for (; c + W <= count_; c += W) {
      Floats sum = {};
      for (int64_t j = 0; j < t_.width; ++j) {
        sum = load_as_floats(rows[j] + c) * load(taps + j * t_.channels + c) + sum;
      }
      store_floats(y + c, silu(sum));
    }
    for (; c < count_; ++c) {
      float sum = 0;
      for (int64_t j = 0; j < t_.width; ++j) {
        sum = to_float(rows[j][c]) * taps[j * t_.channels + c] + sum;
      }
      y[c] = from_float<T>(silu(splat(sum))[0]);
    }
  }

  // Saves the last inputs up to `token`.
  void save(int64_t token, int64_t slot) const {
    for (int64_t row = 0; row < t_.width - 1; ++row) {
      std::memcpy(slot_row(slot, row), input(token - (t_.width - 2) + row), count_ * sizeof(T));
    }
  }

 private:
  const T* input(int64_t token) const {
    const int64_t before = tokens_.first - token;
    if (before > 0) return history_ + (t_.width - 1 - before) * count_;
    return static_cast<const T*>(t_.x) + token * t_.channels + first_;
  }

  T* slot_row(int64_t slot, int64_t row) const {
    return static_cast<T*>(t_.state) + (slot * (t_.width - 1) + row) * t_.channels + first_;
  }

  const CausalConvTask& t_;
  const SequenceTokens& tokens_;
  int64_t first_, count_;
  const T* history_;
};

}  // namespace tinyllm::TINYLLM_TIER
