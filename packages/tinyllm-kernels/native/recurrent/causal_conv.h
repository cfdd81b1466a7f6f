// The causal convolution of some channels of a sequence.
#pragma once

#include <cstring>

#include "isa/load_store.h"
#include "recurrent/segments.h"
#include "rows/silu.h"

namespace tinyllm::TINYLLM_ISA {

// Channels `first` to `first + count` of the inputs of a sequence.
template <typename T>
class ConvChannels {
 public:
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

  // Writes the results of tokens `first` to `last` to `y`, whose rows are `stride` numbers apart.
  void convolve(int64_t first, int64_t last, T* y, int64_t stride) const {
    const int64_t vectors_end = count_ / W * W;
    for (int64_t c = 0; c < vectors_end; c += W) {
      if (t_.width == 4) {
        convolve_four(first, last, c, y + c, stride);
      } else {
        convolve_any(first, last, c, y + c, stride);
      }
    }
    for (int64_t c = vectors_end; c < count_; ++c) {
      for (int64_t token = first; token < last; ++token) {
        float sum = -0.0f;  // x added to it is x, even if x is -0
        for (int64_t j = 0; j < t_.width; ++j) {
          sum = multiply_add(to_float(input(token - (t_.width - 1) + j)[c]), taps(j)[c], sum);
        }
        y[(token - first) * stride + c] = from_float<T>(silu(splat(sum))[0]);
      }
    }
  }

  // Saves the last inputs up to `token`.
  void save(int64_t token, int64_t slot) const {
    for (int64_t row = 0; row < t_.width - 1; ++row) {
      std::memcpy(slot_row(slot, row), input(token - (t_.width - 2) + row), count_ * sizeof(T));
    }
  }

 private:
  // W channels from `c` on, with 4 weights: each input is loaded once.
  void convolve_four(int64_t first, int64_t last, int64_t c, T* y, int64_t stride) const {
    const Floats tap0 = load(taps(0) + c), tap1 = load(taps(1) + c);
    const Floats tap2 = load(taps(2) + c), tap3 = load(taps(3) + c);
    Floats x0 = load_as_floats(input(first - 3) + c), x1 = load_as_floats(input(first - 2) + c);
    Floats x2 = load_as_floats(input(first - 1) + c);
    for (int64_t token = first; token < last; ++token) {
      const Floats x3 = load_as_floats(input(token) + c);
      Floats sum = x0 * tap0;
      sum = multiply_add(x1, tap1, sum);
      sum = multiply_add(x2, tap2, sum);
      sum = multiply_add(x3, tap3, sum);
      store_floats(y + (token - first) * stride, silu(sum));
      x0 = x1, x1 = x2, x2 = x3;
    }
  }

  void convolve_any(int64_t first, int64_t last, int64_t c, T* y, int64_t stride) const {
    for (int64_t token = first; token < last; ++token) {
      Floats sum = splat(-0.0f);
      for (int64_t j = 0; j < t_.width; ++j) {
        const Floats x = load_as_floats(input(token - (t_.width - 1) + j) + c);
        sum = multiply_add(x, load(taps(j) + c), sum);
      }
      store_floats(y + (token - first) * stride, silu(sum));
    }
  }

  // The weights of the first channel and the following ones.
  const float* taps(int64_t j) const { return t_.taps + j * t_.channels + first_; }

  const T* input(int64_t token) const {
    const int64_t before = tokens_.first - token;
    if (before > 0) return history_ + (t_.width - 1 - before) * count_;
    return static_cast<const T*>(t_.x) + token * t_.x_stride + first_;
  }

  T* slot_row(int64_t slot, int64_t row) const {
    return static_cast<T*>(t_.state) + (slot * (t_.width - 1) + row) * t_.channels + first_;
  }

  const CausalConvTask& t_;
  const SequenceTokens& tokens_;
  int64_t first_, count_;
  const T* history_;
};

}  // namespace tinyllm::TINYLLM_ISA
