#include "layers/routing.h"

#include <algorithm>
#include <cmath>

#include "layers/products/products.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

// Replaces scores by their softmax. A NaN among the scores makes all of them NaN.
void softmax(float* scores, int64_t count) {
  float largest = scores[0], total = 0;
  for (int64_t i = 1; i < count; ++i) largest = std::max(largest, scores[i]);
  for (int64_t i = 0; i < count; ++i) total += scores[i] = std::exp(scores[i] - largest);
  for (int64_t i = 0; i < count; ++i) scores[i] /= total;
}

// Writes the k largest probabilities and their experts. The lower index wins a tie. Repeated
// selection is fast enough for k of about 8.
void choose_experts(const float* probabilities, int64_t count, int64_t k, float* weights,
                    int64_t* chosen) {
  std::vector<bool> taken(count);
  for (int64_t n = 0; n < k; ++n) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (!taken[i] && (best < 0 || probabilities[i] > probabilities[best])) best = i;
    }
    taken[best] = true;
    weights[n] = probabilities[best];
    chosen[n] = best;
  }
}

// Converts x to float32, the type in which tokens are routed.
Aligned<float> to_floats(const KernelTable& kernels, const MoeTask& t, const void* x) {
  const int64_t width = t.router.columns, size = size_of(t.type);
  auto floats = aligned<float>(t.rows * width);
  parallel_for(t.rows, width, [&](int64_t first, int64_t last) {
    kernels.to_floats(static_cast<const char*>(x) + first * width * size, t.type,
                      floats.get() + first * width, (last - first) * width);
  });
  return floats;
}

}  // namespace

Routing::Routing(const KernelTable& kernels, const MoeTask& t, const void* x, Operand& tokens)
    : weights(t.rows * t.terms()), sorted_rows(t.rows * t.terms()) {
  std::vector<int64_t> chosen(t.rows * t.experts_per_token);  // `rows K`: the expert of each weight
  const int64_t num_experts = t.router.rows, k = t.experts_per_token, terms = t.terms();
  const Aligned<float> rows = to_floats(kernels, t, x);
  auto scores = aligned<float>(t.rows * num_experts);
  Operand operand(kernels, rows.get(), Type::float32, t.rows, t.router.columns, t.phase);
  const auto gates = aligned<char>(t.rows * size_of(t.type));
  std::vector<Product> products{{&operand, &t.router, nullptr, nullptr, scores.get()}};
  if (t.shared) {
    products.push_back({&tokens, &t.shared->shared_gate, nullptr, nullptr, gates.get()});
  }
  multiply(kernels, products);
  parallel_for(t.rows, k * num_experts, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      float* row = scores.get() + n * num_experts;
      float* row_weights = weights.data() + n * terms;
      softmax(row, num_experts);
      choose_experts(row, num_experts, k, row_weights, chosen.data() + n * k);
      if (t.shared) {
        kernels.to_floats(gates.get() + n * size_of(t.type), t.type, row_weights + k, 1);
        row_weights[k] = 1 / (1 + std::exp(-row_weights[k]));
      }
      if (!t.normalizes_routing_weights) continue;
      float total = 0;
      for (int64_t i = 0; i < k; ++i) total += row_weights[i];
      for (int64_t i = 0; i < k; ++i) row_weights[i] /= total;
    }
  });

  // A counting sort by expert: `next` first counts the rows of each expert, then is the position of
  // its next row.
  std::vector<int64_t> next(num_experts);
  for (const int64_t expert : chosen) ++next[expert];
  for (int64_t expert = 0, first = 0; expert < num_experts; ++expert) {
    const int64_t count = next[expert];
    if (count) experts.push_back({expert, first, count});
    next[expert] = first;
    first += count;
  }
  for (int64_t n = 0; n < t.rows; ++n) {
    int64_t* row_of_term = sorted_rows.data() + n * terms;
    for (int64_t i = 0; i < k; ++i) row_of_term[i] = next[chosen[n * k + i]]++;
    if (t.shared) row_of_term[k] = t.rows * k + n;
  }
}

}  // namespace tinyllm
