#include "layers/token_choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ceil_div.h"
#include "runtime/thread_pool.h"
#include "types.h"

namespace tinyllm {
namespace {

// Scores in a part of a row. One thread computes a part and may read it twice, so its 64 KB of
// floats should stay in a second-level cache.
constexpr int64_t kPartSize = 1 << 14;

int64_t parts_per_row(const ScoreRows& scores) { return ceil_div(scores.columns, kPartSize); }

const char* row_of(const ScoreRows& scores, int64_t row) {
  return static_cast<const char*>(scores.x) + row * scores.columns * size_of(scores.type);
}

// Calls `work(row, part, first, last)` for each part of each row, on all threads.
template <typename Work>
void for_each_part(const ScoreRows& scores, Work work) {
  const int64_t parts = parts_per_row(scores);
  ThreadPool::shared().run(scores.rows * parts, [&](int64_t index, int) {
    const int64_t row = index / parts, part = index % parts;
    const int64_t first = part * kPartSize;
    work(row, part, first, std::min(first + kPartSize, scores.columns));
  });
}

float score_at(const ScoreRows& scores, int64_t row, int64_t column) {
  const char* score = row_of(scores, row) + column * size_of(scores.type);
  switch (scores.type) {
    case Type::float16: return to_float(*reinterpret_cast<const Float16*>(score));
    case Type::bfloat16: return to_float(*reinterpret_cast<const BFloat16*>(score));
    default: return *reinterpret_cast<const float*>(score);
  }
}

}  // namespace

void argmax(const KernelTable& kernels, const ScoreRows& scores, int32_t* indices) {
  const int64_t parts = parts_per_row(scores);
  std::vector<Scored> found(scores.rows * parts);  // the best score of each part: R parts
  for_each_part(scores, [&](int64_t row, int64_t part, int64_t first, int64_t last) {
    found[row * parts + part] =
        kernels.argmax_range(row_of(scores, row), scores.type, first, last);
  });
  for (int64_t row = 0; row < scores.rows; ++row) {
    const Scored* candidates = &found[row * parts];
    Scored best = candidates[0];
    for (int64_t i = 1; i < parts; ++i) {
      // A later part wins with a larger score or NaN, but not after a NaN. The comparison is false
      // for NaN.
      const bool best_is_nan = best.score != best.score;
      if (!best_is_nan && !(candidates[i].score <= best.score)) best = candidates[i];
    }
    indices[row] = best.index;
  }
}

void top_k(const KernelTable& kernels, const ScoreRows& scores, int64_t k, void* best,
           int32_t* indices) {
  const int64_t parts = parts_per_row(scores), capacity = std::min(k, kPartSize);
  std::vector<Scored> found(scores.rows * parts * capacity);  // R parts capacity
  std::vector<int64_t> counts(scores.rows * parts);           // scores found in each part
  for_each_part(scores, [&](int64_t row, int64_t part, int64_t first, int64_t last) {
    const int64_t index = row * parts + part;
    counts[index] = kernels.top_k_range(row_of(scores, row), scores.type, first, last,
                                        std::min(k, last - first), &found[index * capacity]);
  });
  const int64_t size = size_of(scores.type);
  for (int64_t row = 0; row < scores.rows; ++row) {
    std::vector<Scored> all;
    for (int64_t i = row * parts; i < (row + 1) * parts; ++i) {
      all.insert(all.end(), &found[i * capacity], &found[i * capacity] + counts[i]);
    }
    std::partial_sort(all.begin(), all.begin() + k, all.end(), ranks_before);
    for (int64_t i = 0; i < k; ++i) {
      indices[row * k + i] = all[i].index;
      std::memcpy(static_cast<char*>(best) + (row * k + i) * size,
                  row_of(scores, row) + all[i].index * size, size);
    }
  }
}

void log_probability(const KernelTable& kernels, const ScoreRows& scores, const int32_t* ids,
                     int64_t k, float* y) {
  const int64_t parts = parts_per_row(scores);
  std::vector<ExpSum> sums(scores.rows * parts);
  for_each_part(scores, [&](int64_t row, int64_t part, int64_t first, int64_t last) {
    sums[row * parts + part] = kernels.exp_sum_range(row_of(scores, row), scores.type, first, last);
  });
  for (int64_t row = 0; row < scores.rows; ++row) {
    const ExpSum* part_sums = &sums[row * parts];
    // A part in which all scores are -inf has the sum 0, and its `largest` means nothing.
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < parts; ++i) {
      if (part_sums[i].sum != 0) top = std::max(top, part_sums[i].largest);
    }
    double total = 0;  // the sum of e^(x - top) over the row
    for (int64_t i = 0; i < parts; ++i) {
      if (part_sums[i].sum == 0) continue;
      total += part_sums[i].sum * std::exp(double{part_sums[i].largest} - top);
    }
    for (int64_t i = 0; i < k; ++i) {
      // Subtract the largest score before the logarithm: a float near 10,000 has an error of up to
      // 0.0005. A negative id is large as an unsigned number.
      const uint32_t last = static_cast<uint32_t>(scores.columns - 1);
      const float shifted = score_at(scores, row, std::min<uint32_t>(ids[row * k + i], last)) - top;
      y[row * k + i] = static_cast<float>(shifted - std::log(total));
    }
  }
}

}  // namespace tinyllm
