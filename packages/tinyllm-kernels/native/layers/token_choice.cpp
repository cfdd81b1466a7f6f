#include "layers/token_choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "types.h"
#include "runtime/thread_pool.h"

namespace tinyllm {
namespace {

constexpr int64_t kStretch = 1 << 14;  // of scores that one thread looks at: they fit its cache

int64_t stretches_of(const ScoreRows& scores) { return (scores.columns + kStretch - 1) / kStretch; }

const char* row_of(const ScoreRows& scores, int64_t row) {
  return static_cast<const char*>(scores.x) + row * scores.columns * size_of(scores.type);
}

// Calls `work(row, stretch, first, last)` for each stretch of each row, on all threads.
template <typename Work>
void for_stretches(const ScoreRows& scores, Work work) {
  const int64_t stretches = stretches_of(scores);
  ThreadPool::shared().run(scores.rows * stretches, [&](int64_t part, int) {
    const int64_t row = part / stretches, stretch = part % stretches;
    const int64_t first = stretch * kStretch;
    work(row, stretch, first, std::min(first + kStretch, scores.columns));
  });
}

float score_at(const ScoreRows& scores, int64_t row, int64_t column) {
  const char* x = row_of(scores, row) + column * size_of(scores.type);
  switch (scores.type) {
    case Type::float16: return to_float(*reinterpret_cast<const Float16*>(x));
    case Type::bfloat16: return to_float(*reinterpret_cast<const BFloat16*>(x));
    default: return *reinterpret_cast<const float*>(x);
  }
}

}  // namespace

void argmax(const Kernels& kernels, const ScoreRows& scores, int32_t* indices) {
  const int64_t stretches = stretches_of(scores);
  std::vector<Scored> found(scores.rows * stretches);
  for_stretches(scores, [&](int64_t row, int64_t stretch, int64_t first, int64_t last) {
    found[row * stretches + stretch] =
        kernels.argmax_range(row_of(scores, row), scores.type, first, last);
  });
  for (int64_t row = 0; row < scores.rows; ++row) {
    const Scored* of_row = &found[row * stretches];
    Scored best = of_row[0];
    for (int64_t i = 1; i < stretches; ++i) {
      const bool odd = best.score != best.score;
      if (!odd && !(of_row[i].score <= best.score)) best = of_row[i];
    }
    indices[row] = best.index;
  }
}

void top_k(const Kernels& kernels, const ScoreRows& scores, int64_t k, void* best,
           int32_t* indices) {
  const int64_t stretches = stretches_of(scores), room = std::min(k, kStretch);
  std::vector<Scored> found(scores.rows * stretches * room);
  std::vector<int64_t> counts(scores.rows * stretches);
  for_stretches(scores, [&](int64_t row, int64_t stretch, int64_t first, int64_t last) {
    const int64_t at = row * stretches + stretch;
    counts[at] = kernels.top_k_range(row_of(scores, row), scores.type, first, last,
                                     std::min(k, last - first), &found[at * room]);
  });
  const int64_t size = size_of(scores.type);
  for (int64_t row = 0; row < scores.rows; ++row) {
    std::vector<Scored> all;
    for (int64_t at = row * stretches; at < (row + 1) * stretches; ++at) {
      all.insert(all.end(), &found[at * room], &found[at * room] + counts[at]);
    }
    std::partial_sort(all.begin(), all.begin() + k, all.end(), ranks_before);
    for (int64_t i = 0; i < k; ++i) {
      indices[row * k + i] = all[i].index;
      std::memcpy(static_cast<char*>(best) + (row * k + i) * size,
                  row_of(scores, row) + all[i].index * size, size);
    }
  }
}

void log_probability(const Kernels& kernels, const ScoreRows& scores, const int32_t* ids,
                     int64_t k, float* y) {
  const int64_t stretches = stretches_of(scores);
  std::vector<ExpSum> sums(scores.rows * stretches);
  for_stretches(scores, [&](int64_t row, int64_t stretch, int64_t first, int64_t last) {
    sums[row * stretches + stretch] =
        kernels.exp_sum_range(row_of(scores, row), scores.type, first, last);
  });
  for (int64_t row = 0; row < scores.rows; ++row) {
    const ExpSum* of_row = &sums[row * stretches];
    float top = of_row[0].largest;
    for (int64_t i = 1; i < stretches; ++i) top = std::max(top, of_row[i].largest);
    double total = 0;
    for (int64_t i = 0; i < stretches; ++i) {
      total += of_row[i].sum * std::exp(double{of_row[i].largest} - top);
    }
    for (int64_t i = 0; i < k; ++i) {
      // The difference first: at scores of 10,000 floats are a thousandth apart.
      const uint32_t last = static_cast<uint32_t>(scores.columns - 1);
      const float below = score_at(scores, row, std::min<uint32_t>(ids[row * k + i], last)) - top;
      y[row * k + i] = static_cast<float>(below - std::log(total));
    }
  }
}

}  // namespace tinyllm
