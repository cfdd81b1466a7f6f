// Argmax, top-k and the sum of exponentials over a range of a row of scores.
//
// Most scores of a vocabulary are far from the best, so argmax and top-k read strips of 8 vectors
// and skip a strip if the largest score in it is too low.
#include <algorithm>
#include <limits>
#include <vector>

#include "isa/load_store.h"
#include "rows/tasks.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kStrip = 8 * W;  // scores of a strip

// The largest of kStrip scores. NaNs are skipped.
template <typename T>
float largest_of_strip(const T* x) {
  Floats largest = splat(kLowest);
#pragma GCC unroll 8
  for (int i = 0; i < kStrip; i += W) largest = max(load_as_floats(x + i), largest);
  return largest_lane(largest);
}

// True if one of kStrip scores is NaN.
template <typename T>
bool strip_has_nan(const T* x) {
  Floats nans = {};
#pragma GCC unroll 8
  for (int i = 0; i < kStrip; i += W) {
    const Floats v = load_as_floats(x + i), one = splat(1);
    nans = v == v ? nans : one;
  }
  return largest_lane(nans) > 0;
}

// Returns the index of the first score that equals `score` or is NaN, or 0 if there is none.
template <typename T>
int64_t first_equal(const T* x, int64_t count, float score) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = to_float(x[i]);
    if (v == score || v != v) return i;
  }
  return 0;
}

template <typename T>
Scored argmax(const T* x, int64_t first, int64_t last) {
  float best = kLowest;
  int64_t best_strip = first;  // first index of the strip with the best score
  for (int64_t i = first; i < last; i += kStrip) {
    float largest = kLowest;
    bool has_nan = false;
    if (last - i >= kStrip) {
      largest = largest_of_strip(x + i);
      has_nan = strip_has_nan(x + i);
    } else {
      for (int64_t j = i; j < last; ++j) {
        const float v = to_float(x[j]);
        largest = v > largest ? v : largest;
        has_nan = has_nan || v != v;
      }
    }
    if (largest > best) best = largest, best_strip = i;
    if (has_nan) {
      best = std::numeric_limits<float>::quiet_NaN(), best_strip = i;
      break;
    }
  }
  const int64_t count = std::min(kStrip, last - best_strip);
  const int64_t index = best_strip + first_equal(x + best_strip, count, best);
  return {best, static_cast<int32_t>(index)};
}

// A type without linkage, so that each instruction set has its own copies of the functions of
// std::vector and std::nth_element: see types.h.
struct Candidate : Scored {};

struct RanksBefore {
  bool operator()(const Candidate& a, const Candidate& b) const { return ranks_before(a, b); }
};

// Collects up to 2 k candidates, then keeps the best k. The k-th best score so far is the threshold
// for further candidates.
template <typename T>
int64_t top_k(const T* x, int64_t first, int64_t last, int64_t k, Scored* to) {
  std::vector<Candidate> candidates;
  candidates.reserve(std::min(2 * k, last - first));
  float threshold = kLowest;
  bool has_threshold = false;
  const auto keep_best = [&] {
    const auto kth = candidates.begin() + (k - 1);
    std::nth_element(candidates.begin(), kth, candidates.end(), RanksBefore());
    candidates.resize(k);
    threshold = candidates.back().score;
    has_threshold = true;
  };
  for (int64_t i = first; i < last; i += kStrip) {
    const int64_t end = std::min(i + kStrip, last);
    if (has_threshold && end - i == kStrip && largest_of_strip(x + i) <= threshold) continue;
    for (int64_t j = i; j < end; ++j) {
      const float v = to_float(x[j]);
      if (has_threshold && v <= threshold) continue;
      candidates.push_back({{v, static_cast<int32_t>(j)}});
      if (static_cast<int64_t>(candidates.size()) == 2 * k) keep_best();
    }
  }
  if (static_cast<int64_t>(candidates.size()) > k) keep_best();
  for (const Candidate& candidate : candidates) *to++ = candidate;
  return static_cast<int64_t>(candidates.size());
}

template <typename T>
ExpSum exp_sum(const T* x, int64_t first, int64_t last) {
  const int64_t vectors_end = first + (last - first) / W * W;
  Floats lane_maxima = splat(kLowest);
  for (int64_t i = first; i < vectors_end; i += W) {
    lane_maxima = max(load_as_floats(x + i), lane_maxima);
  }
  float largest = largest_lane(lane_maxima);
  for (int64_t i = vectors_end; i < last; ++i) largest = std::max(largest, to_float(x[i]));
  const float shift = largest == kLowest ? 0 : largest;
  Floats lane_sums = {};
  for (int64_t i = first; i < vectors_end; i += W) {
    lane_sums += exp(load_as_floats(x + i) - shift);
  }
  float total = sum(lane_sums);
  for (int64_t i = vectors_end; i < last; ++i) total += exp(splat(to_float(x[i]) - shift))[0];
  return {shift, total};
}

}  // namespace

Scored argmax_range(const void* x, Type type, int64_t first, int64_t last) {
  return with_type(type, [&]<typename T>(T*) {
    return argmax(static_cast<const T*>(x), first, last);
  });
}

int64_t top_k_range(const void* x, Type type, int64_t first, int64_t last, int64_t k, Scored* to) {
  return with_type(type, [&]<typename T>(T*) {
    return top_k(static_cast<const T*>(x), first, last, k, to);
  });
}

ExpSum exp_sum_range(const void* x, Type type, int64_t first, int64_t last) {
  return with_type(type, [&]<typename T>(T*) {
    return exp_sum(static_cast<const T*>(x), first, last);
  });
}

}  // namespace tinyllm::TINYLLM_ISA
