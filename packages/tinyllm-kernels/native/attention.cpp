#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "decode.h"
#include "kernels.h"
#include "numbers.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

// The products of a query with `count` keys, each `stride` after the one before.
template <typename T>
void score(const float* q, const T* keys, int64_t stride, int64_t count, int64_t dim, float* scores) {
  constexpr int kTogether = 4;  // keys at once, so that their sums do not wait for each other
  int64_t j = 0;
  for (; j + kTogether <= count; j += kTogether) {
    Floats sums[kTogether] = {};
    int64_t d = 0;
    for (; d + W <= dim; d += W) {
      Floats part = load(q + d);
#pragma GCC unroll 4
      for (int n = 0; n < kTogether; ++n) {
        sums[n] += part * load_as_floats(keys + (j + n) * stride + d);
      }
    }
    for (int n = 0; n < kTogether; ++n) {
      float total = sum(sums[n]);
      for (int64_t rest = d; rest < dim; ++rest) {
        total += q[rest] * to_float(keys[(j + n) * stride + rest]);
      }
      scores[j + n] = total;
    }
  }
  for (; j < count; ++j) {
    float total = 0;
    for (int64_t d = 0; d < dim; ++d) total += q[d] * to_float(keys[j * stride + d]);
    scores[j] = total;
  }
}

// Scores to weights, in place; gives their sum, which is 0 where every score is -infinity.
float exponentials(float* scores, int64_t count) {
  float top = -std::numeric_limits<float>::infinity();
  bool nan = false;
  for (int64_t j = 0; j < count; ++j) {
    nan |= scores[j] != scores[j];
    top = std::max(top, scores[j]);
  }
  if (nan) return std::numeric_limits<float>::quiet_NaN();
  if (top == -std::numeric_limits<float>::infinity()) {
    std::fill_n(scores, count, 0.0f);
    return 0;
  }
  Floats totals = {};
  int64_t j = 0;
  for (; j + W <= count; j += W) {
    Floats weights = exp(load(scores + j) - top);
    store(scores + j, weights);
    totals += weights;
  }
  float total = sum(totals);
  for (; j < count; ++j) {
    scores[j] = exp(splat(scores[j] - top))[0];
    total += scores[j];
  }
  return total;
}

// y += weights * values, for W features at a time over all keys.
template <typename T>
void mix(const float* weights, const T* values, int64_t stride, int64_t count, int64_t dim,
         float share, T* y) {
  int64_t d = 0;
  for (; d + W <= dim; d += W) {
    Floats even = {}, odd = {};
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
      even += weights[j] * load_as_floats(values + j * stride + d);
      odd += weights[j + 1] * load_as_floats(values + (j + 1) * stride + d);
    }
    if (j < count) even += weights[j] * load_as_floats(values + j * stride + d);
    store_floats(y + d, (even + odd) * share);
  }
  for (; d < dim; ++d) {
    float total = 0;
    for (int64_t j = 0; j < count; ++j) total += weights[j] * to_float(values[j * stride + d]);
    y[d] = from_float<T>(total * share);
  }
}

template <typename T>
void attend(const AttentionTask& t, int64_t batch, int64_t head, int64_t query, float* scratch) {
  float* q = scratch;
  float* scores = scratch + t.dim;
  const int64_t shared = head / (t.heads / t.kv_heads);
  const T* from = static_cast<const T*>(t.q) + batch * t.q_strides[0] + head * t.q_strides[1] +
                  query * t.q_strides[2];
  for (int64_t d = 0; d < t.dim; ++d) q[d] = to_float(from[d]) * t.scale;
  // Keys after the last one that a causal query sees are not looked at.
  const int64_t seen = t.causal ? std::clamp<int64_t>(query + t.keys - t.length + 1, 0, t.keys)
                                : t.keys;
  const T* keys = static_cast<const T*>(t.k) + batch * t.k_strides[0] + shared * t.k_strides[1];
  const T* values = static_cast<const T*>(t.v) + batch * t.v_strides[0] + shared * t.v_strides[1];
  score(q, keys, t.k_strides[2], seen, t.dim, scores);
  if (t.mask) {
    const int64_t at = batch * t.mask_strides[0] + head * t.mask_strides[1] +
                       query * t.mask_strides[2];
    for (int64_t j = 0; j < seen; ++j) {
      scores[j] += number(t.mask, t.mask_type, at + j * t.mask_strides[3]);
    }
  }
  const float total = exponentials(scores, seen);
  T* y = static_cast<T*>(t.y) + ((batch * t.heads + head) * t.length + query) * t.dim;
  mix(scores, values, t.v_strides[2], seen, t.dim, total == 0 ? 0.0f : 1 / total, y);
}

}  // namespace

int64_t attention_scratch(const AttentionTask& t) { return t.dim + t.keys; }

// Row `n` is query n % L of head n / L % H of batch n / L / H.
void attention_row(const AttentionTask& t, int64_t n, float* scratch) {
  with_type(t.type, [&]<typename T>(T*) {
    attend<T>(t, n / t.length / t.heads, n / t.length % t.heads, n % t.length, scratch);
  });
}

}  // namespace tinyllm::TINYLLM_TIER
