#include "check/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "check/data/array.h"
#include "layers/token_choice.h"

namespace tinyllm::check {
namespace {

void check_rows(const KernelTable& kernels, Type type, int columns, int k) {
  const int R = 3;
  Array x = Array::random(type, size_t(R) * columns), best(type, size_t(R) * k);
  const ScoreRows scores{x.bytes.data(), R, columns, type};
  std::vector<int32_t> first(R), indices(R * k);
  std::vector<float> log_probabilities(R * k);
  argmax(kernels, scores, first.data());
  top_k(kernels, scores, k, best.bytes.data(), indices.data());
  log_probability(kernels, scores, indices.data(), k, log_probabilities.data());

  std::vector<double> expected_best(R * k), expected(R * k);
  Array logarithms(Type::float32, size_t(R) * k);
  for (int row = 0; row < R; ++row) {
    const auto score = [&](int i) { return x.at(size_t(row) * columns + i); };
    std::vector<int32_t> order(columns);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score(a) > score(b); });
    double total = 0;
    for (int i = 0; i < columns; ++i) total += std::exp(score(i));
    bool is_right = first[row] == order[0];
    for (int i = 0; i < k; ++i) {
      is_right = is_right && indices[row * k + i] == order[i];
      expected_best[row * k + i] = score(order[i]);
      expected[row * k + i] = score(order[i]) - std::log(total);
      logarithms.set(row * k + i, log_probabilities[row * k + i]);
    }
    if (!is_right) {
      std::printf("%s: argmax or top_k differ from the %d largest of %d scores\n", kernels.name, k, columns);
      ++failures;
    }
  }
  compare(kernels, "top_k", best, expected_best);
  compare(kernels, "log_probability", logarithms, expected);
}

// An id outside of the row must be read as the last one.
void check_clamped_ids(const KernelTable& kernels, Type type) {
  const int32_t V = 200, last = V - 1, ids[] = {last, V, -1, INT32_MAX, INT32_MIN};
  const Array x = Array::random(type, V);
  float actual[std::size(ids)];
  log_probability(kernels, {x.bytes.data(), 1, V, type}, ids, std::size(ids), actual);
  for (float each : actual) {
    if (each == actual[0]) continue;
    std::printf("%s: log_probability of an id outside of the row differs from the last one\n",
                kernels.name);
    ++failures;
  }
}

}  // namespace

void check_token_choice(const KernelTable& kernels, Type type) {
  check_clamped_ids(kernels, type);
  check_rows(kernels, type, 7, 2);
  check_rows(kernels, type, 200, 5);
  check_rows(kernels, type, 16384 + 130, 20);
}

}  // namespace tinyllm::check
