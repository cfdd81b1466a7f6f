// Scores to weights, a row at a time.
#pragma once

#include <cstdint>
#include <limits>

#include "isa/lanes.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr float kUnseen = -std::numeric_limits<float>::infinity();

// The last `count` < W scores of a row, and lanes that count for nothing.
inline Floats load_rest(const float* scores, int64_t count) {
  Floats v = splat(kUnseen);
  std::memcpy(&v, scores, static_cast<size_t>(count) * sizeof(float));
  return v;
}

// The largest score, from `top` on; what is no number is passed over.
inline float highest(const float* scores, int64_t count, float top) {
  Floats tops = splat(top);
  int64_t j = 0;
  for (; j + W <= count; j += W) tops = max(load(scores + j), tops);
  if (j < count) tops = max(load_rest(scores + j, count - j), tops);
  return highest_lane(tops);
}

// What weights are relative to: the largest score, or, where none is seen, any number.
inline float base_of(float top) { return top == kUnseen ? 0.0f : top; }

// exp(score - base) in place of each score. Gives the sum, which is NaN if one of them was.
inline float to_weights(float* scores, int64_t count, float base) {
  Floats total{};
  int64_t j = 0;
  for (; j + W <= count; j += W) {
    Floats weights = exp(load(scores + j) - base);
    store(scores + j, weights);
    total += weights;
  }
  if (j < count) {
    Floats weights = exp(load_rest(scores + j, count - j) - base);
    std::memcpy(scores + j, &weights, static_cast<size_t>(count - j) * sizeof(float));
    total += weights;
  }
  return sum(total);
}

}  // namespace tinyllm::TINYLLM_TIER
