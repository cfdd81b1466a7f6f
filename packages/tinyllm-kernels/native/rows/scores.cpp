#include "rows/tasks.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "isa/load_store.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 8 * W;  // numbers that are looked at before the best of them is

// The largest number of a whole block; what is no number is passed over.
template <typename T>
float largest_of_block(const T* x) {
  Floats best = splat(kLeast);
#pragma GCC unroll 8
  for (int i = 0; i < kBlock; i += W) best = max(load_as_floats(x + i), best);
  return largest_lane(best);
}

// Where among `count` numbers the first is that equals `score`, or is no number.
template <typename T>
int64_t first_of(const T* x, int64_t count, float score) {
  for (int64_t i = 0; i < count; ++i) {
    const float v = to_float(x[i]);
    if (v == score || v != v) return i;
  }
  return 0;
}

template <typename T>
bool has_nan(const T* x) {
  Floats odd = {};
#pragma GCC unroll 8
  for (int i = 0; i < kBlock; i += W) {
    const Floats v = load_as_floats(x + i), one = splat(1);
    odd = v == v ? odd : one;
  }
  return largest_lane(odd) > 0;
}

template <typename T>
Scored largest(const T* x, int64_t first, int64_t last) {
  float best = kLeast;
  int64_t where = first;
  for (int64_t i = first; i < last; i += kBlock) {
    const int64_t count = std::min(kBlock, last - i);
    float found = kLeast;
    bool odd = false;
    if (count == kBlock) {
      found = largest_of_block(x + i), odd = has_nan(x + i);
    } else {
      for (int64_t j = i; j < last; ++j) {
        const float v = to_float(x[j]);
        found = v > found ? v : found, odd = odd || v != v;
      }
    }
    if (found > best) best = found, where = i;
    if (odd) {
      best = std::numeric_limits<float>::quiet_NaN(), where = i;
      break;
    }
  }
  where += first_of(x + where, std::min(kBlock, last - where), best);
  return {best, static_cast<int32_t>(where)};
}

template <typename T>
int64_t best(const T* x, int64_t first, int64_t last, int64_t k, Scored* to) {
  std::vector<Scored> kept;
  kept.reserve(std::min(2 * k, last - first));
  float bound = kLeast;  // no number up to it is among the best, once there are k
  bool full = false;
  const auto thin_out = [&] {
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), before);
    kept.resize(k);
    bound = kept.back().score, full = true;
  };
  for (int64_t i = first; i < last; i += kBlock) {
    const int64_t end = std::min(i + kBlock, last);
    if (full && end - i == kBlock && largest_of_block(x + i) <= bound) continue;
    for (int64_t j = i; j < end; ++j) {
      const float v = to_float(x[j]);
      if (full && v <= bound) continue;
      kept.push_back({v, static_cast<int32_t>(j)});
      if (static_cast<int64_t>(kept.size()) == 2 * k) thin_out();
    }
  }
  if (static_cast<int64_t>(kept.size()) > k) thin_out();
  std::copy(kept.begin(), kept.end(), to);
  return static_cast<int64_t>(kept.size());
}

template <typename T>
ExpSum exp_sum(const T* x, int64_t first, int64_t last) {
  const int64_t whole = first + (last - first) / W * W;
  Floats tops = splat(kLeast);
  for (int64_t i = first; i < whole; i += W) tops = max(load_as_floats(x + i), tops);
  float top = largest_lane(tops);
  for (int64_t i = whole; i < last; ++i) top = std::max(top, to_float(x[i]));
  const float shift = top == kLeast ? 0 : top;
  Floats sums = {};
  for (int64_t i = first; i < whole; i += W) sums += exp(load_as_floats(x + i) - shift);
  float total = sum(sums);
  for (int64_t i = whole; i < last; ++i) total += exp(splat(to_float(x[i]) - shift))[0];
  return {shift, total};
}

}  // namespace

Scored largest_score(const void* x, Type type, int64_t first, int64_t last) {
  return with_type(type, [&]<typename T>(T*) {
    return largest(static_cast<const T*>(x), first, last);
  });
}

int64_t best_scores(const void* x, Type type, int64_t first, int64_t last, int64_t k, Scored* to) {
  return with_type(type, [&]<typename T>(T*) {
    return best(static_cast<const T*>(x), first, last, k, to);
  });
}

ExpSum score_sum(const void* x, Type type, int64_t first, int64_t last) {
  return with_type(type, [&]<typename T>(T*) {
    return exp_sum(static_cast<const T*>(x), first, last);
  });
}

}  // namespace tinyllm::TINYLLM_TIER
