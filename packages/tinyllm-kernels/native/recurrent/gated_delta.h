// The gated delta rule of the heads of a sequence, segment by segment.
#pragma once

#include <cmath>

#include "ceil_div.h"
#include "isa/load_store.h"
#include "recurrent/scan.h"
#include "recurrent/segments.h"

namespace tinyllm::TINYLLM_ISA {

// The scratch memory of a thread: the tokens of a segment in float32, the rows of a state that are
// scanned, and a state between two segments of a sequence.
class DeltaScratch {
 public:
  DeltaScratch(const GatedDeltaTask& t, float* scratch) : DeltaScratch(t) {
    for (float** part : {&keys, &queries}) *part = take(scratch, kSegmentTokens * key_width);
    for (float** part : {&values, &outputs}) *part = take(scratch, kSegmentTokens * value_width);
    for (float** part : {&decays, &rates}) *part = take(scratch, kSegmentTokens);
    rows = take(scratch, kScanRows * key_width);
    states = take(scratch, states_size(t));
    end = scratch;
  }

  static int64_t floats(const GatedDeltaTask& t) {
    const DeltaScratch sizes(t);
    return 2 * kSegmentTokens * (sizes.key_width + sizes.value_width + 1) +
           kScanRows * sizes.key_width + round_up(states_size(t), W);
  }

  int64_t key_width, value_width;
  float *keys, *queries, *values, *outputs, *decays, *rates, *rows, *states, *end;

 private:
  explicit DeltaScratch(const GatedDeltaTask& t)
      : key_width(round_up(t.key_dim, W)), value_width(round_up(t.value_dim, W)) {}

  static int64_t states_size(const GatedDeltaTask& t) {
    return t.value_heads / t.key_heads * t.value_dim * t.key_dim;
  }

  static float* take(float*& scratch, int64_t floats) {
    float* memory = scratch;
    scratch += round_up(floats, W);
    return memory;
  }
};

namespace delta {

// Converts `count` numbers, and writes zeros up to `width`.
template <typename T>
void to_padded_floats(const T* x, int64_t count, int64_t width, float* to) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, load_as_floats(x + i));
  for (; i < count; ++i) to[i] = to_float(x[i]);
  for (; i < width; ++i) to[i] = 0;
}

// Writes factor * x / sqrt(sum of x^2 + 1e-6), padded with zeros to `width`.
template <typename T>
void normalize(const T* x, int64_t count, int64_t width, float factor, float* to) {
  constexpr float kEps = 1e-6f;
  to_padded_floats(x, count, width, to);
  Floats squares = {};
  for (int64_t i = 0; i < width; i += W) squares = load(to + i) * load(to + i) + squares;
  const float scale = factor / std::sqrt(sum(squares) + kEps);
  for (int64_t i = 0; i < width; i += W) store(to + i, load(to + i) * scale);
}

// log(1 + e^x). It is computed from e^-|x|, which never overflows.
inline float softplus(float x) { return std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

// Loads rows of a state, or zeros if it is null. Rows beyond the last one and columns beyond Dk are
// zeros.
template <typename Rows>
void load_rows(const float* state, int64_t row, const GatedDeltaTask& t, Rows& rows) {
  for (int r = 0; r < kScanRows; ++r) {
    const float* from = state && row + r < t.value_dim ? state + (row + r) * t.key_dim : nullptr;
    for (int i = 0; i < rows.vectors(); ++i) {
      const int64_t rest = from ? t.key_dim - int64_t{i} * W : 0;
      Floats v{};
      if (rest >= W) {
        v = load(from + i * W);
      } else if (rest > 0) {
        std::memcpy(&v, from + i * W, rest * sizeof(float));
      }
      rows(r, i) = v;
    }
  }
}

template <typename Rows>
void store_rows(Rows& rows, int64_t row, const GatedDeltaTask& t, float* state) {
  for (int r = 0; r < kScanRows && row + r < t.value_dim; ++r) {
    float* to = state + (row + r) * t.key_dim;
    for (int i = 0; i < rows.vectors(); ++i) {
      const int64_t rest = t.key_dim - int64_t{i} * W;
      const Floats v = rows(r, i);
      if (rest >= W) {
        store(to + i * W, v);
      } else {
        std::memcpy(to + i * W, &v, rest * sizeof(float));
      }
    }
  }
}

// Prefetches the rows of a state that are read, or written, 4 KB later. A decoded token reads and
// writes each row once.
template <int IsWritten>
void prefetch_rows(const float* state, int64_t row, const GatedDeltaTask& t) {
  constexpr int64_t kAhead = 4096, kLine = 64;
  if (!state) return;
  const char* first = reinterpret_cast<const char*>(state + row * t.key_dim) + kAhead;
  const int64_t bytes = kScanRows * t.key_dim * static_cast<int64_t>(sizeof(float));
  for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(first + at, IsWritten);
}

// Scans the tokens with all rows of the state `from`, or zeros if it is null. Writes the result to
// `to` if it is not null.
template <typename Rows>
void scan_head(const GatedDeltaTask& t, const HeadTokens& tokens, const float* from, float* to,
               Rows& rows) {
  for (int64_t row = 0; row < t.value_dim; row += kScanRows) {
    prefetch_rows<0>(from, row, t);
    if (to != from) prefetch_rows<1>(to, row, t);
    load_rows(from, row, t, rows);
    scan(tokens, row, rows);
    if (to) store_rows(rows, row, t, to);
  }
}

}  // namespace delta

// Queries, keys and values of the first token of a segment, at the key head and its first value head.
template <typename T>
struct SegmentInputs {
  const T *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
};

// The value heads of one key head of a sequence.
template <typename T>
class KeyHead {
 public:
  KeyHead(const GatedDeltaTask& t, int64_t head, const SequenceTokens& tokens, float* scratch)
      : t_(t),
        head_(head),
        value_heads_(t.value_heads / t.key_heads),
        scratch_(t, scratch),
        state_(tokens.load < 0 ? nullptr : slot_state(tokens.load)) {}

  // Computes the tokens of a segment. Writes `o`, the result of the first token at the first value
  // head, whose tokens are `o_stride` apart.
  void compute(const Segment& segment, const SegmentInputs<T>& in, T* o, int64_t o_stride) {
    for (int64_t n = 0; n < segment.count(); ++n) {
      const float scale = 1 / std::sqrt(static_cast<float>(t_.key_dim));
      const int64_t width = scratch_.key_width;
      delta::normalize(in.q + n * in.q_stride, t_.key_dim, width, scale,
                       scratch_.queries + n * width);
      delta::normalize(in.k + n * in.k_stride, t_.key_dim, width, 1, scratch_.keys + n * width);
    }
    float* to = scratch_.states;
    if (segment.is_at_end) to = nullptr;
    if (segment.save >= 0) to = slot_state(segment.save);
    const int64_t state_size = t_.value_dim * t_.key_dim;
    for (int64_t h = 0; h < value_heads_; ++h) {
      prepare_values(segment, in, h);
      scan(segment, state_ ? state_ + h * state_size : nullptr, to ? to + h * state_size : nullptr);
      for (int64_t n = 0; n < segment.count(); ++n) {
        round(scratch_.outputs + n * scratch_.value_width, o + n * o_stride + h * t_.value_dim);
      }
    }
    state_ = to;
  }

  float* end_of_scratch() const { return scratch_.end; }

 private:
  float* slot_state(int64_t slot) const {
    return t_.state + (slot * t_.value_heads + head_ * value_heads_) * t_.value_dim * t_.key_dim;
  }

  void prepare_values(const Segment& segment, const SegmentInputs<T>& in, int64_t h) {
    const int64_t value_head = head_ * value_heads_ + h;
    const T *a = static_cast<const T*>(t_.a), *b = static_cast<const T*>(t_.b);
    for (int64_t n = 0; n < segment.count(); ++n) {
      delta::to_padded_floats(in.v + n * in.v_stride + h * t_.value_dim, t_.value_dim,
                              scratch_.value_width, scratch_.values + n * scratch_.value_width);
      const int64_t at = (segment.first + n) * t_.value_heads + value_head;
      const float time = delta::softplus(to_float(a[at]) + t_.dt_bias[value_head]);
      scratch_.decays[n] = std::exp(-t_.rates[value_head] * time);
      scratch_.rates[n] = 1 / (1 + std::exp(-to_float(b[at])));
    }
  }

  void scan(const Segment& segment, const float* from, float* to) {
    const HeadTokens tokens{segment.count(),  scratch_.key_width, scratch_.value_width,
                            scratch_.keys,    scratch_.queries,   scratch_.values,
                            scratch_.decays,  scratch_.rates,     scratch_.outputs};
    constexpr int kDim = 128;  // of all models of this kind
    if (t_.key_dim == kDim) {
      RegisterRows<kDim / W> rows;
      return delta::scan_head(t_, tokens, from, to, rows);
    }
    MemoryRows rows{reinterpret_cast<Floats*>(scratch_.rows),
                    static_cast<int>(scratch_.key_width / W)};
    delta::scan_head(t_, tokens, from, to, rows);
  }

  void round(const float* x, T* to) const {
    int64_t i = 0;
    for (; i + W <= t_.value_dim; i += W) store_floats(to + i, load(x + i));
    for (; i < t_.value_dim; ++i) to[i] = from_float<T>(x[i]);
  }

  const GatedDeltaTask& t_;
  int64_t head_, value_heads_;
  DeltaScratch scratch_;
  const float* state_;  // of the first value head before the next segment; null for zeros
};

}  // namespace tinyllm::TINYLLM_ISA
