// Softmax weights of a row of scores: maximum, exponentials and their sum.
#pragma once

#include <cstdint>
#include <limits>

#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Loads the last `count` < W scores of a row. The other lanes are -infinity and have no weight.
inline Floats load_tail(const float* scores, int64_t count) {
  Floats v = splat(kMinusInfinity);
  std::memcpy(&v, scores, static_cast<size_t>(count) * sizeof(float));
  return v;
}

// The larger of `previous_max` and all scores. NaNs are skipped.
inline float max_score(const float* scores, int64_t count, float previous_max) {
  Floats lane_maxima = splat(previous_max);
  int64_t j = 0;
  for (; j + W <= count; j += W) lane_maxima = max(load(scores + j), lane_maxima);
  if (j < count) lane_maxima = max(load_tail(scores + j, count - j), lane_maxima);
  return largest_lane(lane_maxima);
}

// The number that is subtracted from scores: the maximum, or 0 if there is no key.
inline float softmax_shift(float row_max) { return row_max == kMinusInfinity ? 0.0f : row_max; }

// Replaces each score by exp(score - shift). Returns the sum, which is NaN if a score is NaN.
inline float exp_scores(float* scores, int64_t count, float shift) {
  Floats total{};
  int64_t j = 0;
  for (; j + W <= count; j += W) {
    Floats weights = exp(load(scores + j) - shift);
    store(scores + j, weights);
    total += weights;
  }
  if (j < count) {
    Floats weights = exp(load_tail(scores + j, count - j) - shift);
    std::memcpy(scores + j, &weights, static_cast<size_t>(count - j) * sizeof(float));
    total += weights;
  }
  return sum(total);
}

}  // namespace tinyllm::TINYLLM_ISA
