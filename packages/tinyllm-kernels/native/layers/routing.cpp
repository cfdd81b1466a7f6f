#include "layers/routing.h"

#include <algorithm>
#include <cmath>

#include "runtime/parallel.h"
#include "layers/products.h"

namespace tinyllm {
namespace {

// Scores as shares: e^score over the sum of these. One that is no number leaves no other one.
void softmax(float* scores, int64_t count) {
  float largest = scores[0], total = 0;
  for (int64_t i = 1; i < count; ++i) largest = std::max(largest, scores[i]);
  for (int64_t i = 0; i < count; ++i) total += scores[i] = std::exp(scores[i] - largest);
  for (int64_t i = 0; i < count; ++i) scores[i] /= total;
}

// The largest of the shares, which are few: one after the other, of equal ones the first.
void choose(float* shares, int64_t count, int64_t chosen, float* best, int64_t* experts) {
  std::vector<bool> taken(count);
  for (int64_t k = 0; k < chosen; ++k) {
    int64_t found = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (!taken[i] && (found < 0 || shares[i] > shares[found])) found = i;
    }
    taken[found] = true;
    best[k] = shares[found], experts[k] = found;
  }
}

// x in float32, in which tokens are routed whatever the dtype.
Aligned<float> floats_of(const Kernels& kernels, const MoeBlockTask& t, const void* x) {
  const int64_t width = t.router.columns, size = size_of(t.type);
  auto floats = aligned<float>(t.rows * width);
  in_chunks(t.rows, width, [&](int64_t first, int64_t last) {
    kernels.to_floats(static_cast<const char*>(x) + first * width * size, t.type,
                      floats.get() + first * width, (last - first) * width);
  });
  return floats;
}

}  // namespace

Routes::Routes(const Kernels& kernels, const MoeBlockTask& t, const void* normal)
    : shares(t.rows * t.chosen), experts(t.rows * t.chosen), places(t.rows * t.chosen) {
  const int64_t count = t.router.rows;
  const Aligned<float> x = floats_of(kernels, t, normal);
  auto scores = aligned<float>(t.rows * count);
  Operand rows(kernels, x.get(), Type::float32, t.rows, t.router.columns, t.phase);
  multiply(kernels, {{&rows, &t.router, nullptr, nullptr, scores.get()}});
  in_chunks(t.rows, t.chosen * count, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      float *of_row = scores.get() + n * count, *best = shares.data() + n * t.chosen;
      softmax(of_row, count);
      choose(of_row, count, t.chosen, best, experts.data() + n * t.chosen);
      if (!t.shares_add_to_1) continue;
      float total = 0;
      for (int64_t k = 0; k < t.chosen; ++k) total += best[k];
      for (int64_t k = 0; k < t.chosen; ++k) best[k] /= total;
    }
  });
  std::vector<int64_t> next(count);  // first how many go there, then where the next one belongs
  for (const int64_t expert : experts) ++next[expert];
  for (int64_t expert = 0, first = 0; expert < count; ++expert) {
    const int64_t of_expert = next[expert];
    if (of_expert) runs.push_back({expert, first, of_expert});
    next[expert] = first, first += of_expert;
  }
  for (size_t i = 0; i < experts.size(); ++i) places[i] = next[experts[i]]++;
}

}  // namespace tinyllm
