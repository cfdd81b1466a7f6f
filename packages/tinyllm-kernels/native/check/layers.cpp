#include "check/checks.h"

#include <cmath>
#include <utility>
#include <vector>

#include "check/data/layer.h"
#include "layers/mlp.h"

namespace tinyllm::check {
namespace {

using Numbers = std::vector<double>;

// RMSNorm of rows of `width` numbers.
Numbers normalized(Numbers x, const Array& weight, size_t width) {
  for (size_t first = 0; first < x.size(); first += width) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += x[first + i] * x[first + i];
    for (size_t i = 0; i < width; ++i) {
      x[first + i] *= weight.at(i) / std::sqrt(squares / static_cast<double>(width) + kEps);
    }
  }
  return x;
}

Numbers product(const Numbers& x, const Matrix& matrix, const Array* bias = nullptr) {
  const int N = matrix.w.rows, K = matrix.w.columns;
  const size_t rows = x.size() / K;
  Numbers y(rows * N);
  for (int n = 0; n < N; ++n) {
    for (int k = 0; k < K; ++k) {
      const double number = matrix.at(n, k);
      for (size_t m = 0; m < rows; ++m) y[m * N + n] += x[m * K + k] * number;
    }
    for (size_t m = 0; m < rows && bias; ++m) y[m * N + n] += bias->at(n);
  }
  return y;
}

void check_mlp(const KernelTable& kernels, Type type, Phase phase, int rows) {
  const size_t size = size_t(rows) * E;
  Array x = Array::random(type, size), norm = Array::random(type, E), y(type, size);
  const Matrix gate = packed(F, E, type), up = packed(F, E, type), down = packed(E, F, type);
  run_mlp(kernels, MlpTask{x.bytes.data(),
                           x.bytes.data(),
                           rows,
                           phase,
                           {norm.bytes.data(), kEps},
                           gate.w,
                           up.w,
                           down.w,
                           y.bytes.data(),
                           type});
  const Numbers normal = normalized(x.numbers(), norm, E), upped = product(normal, up);
  Numbers gated = product(normal, gate);
  for (size_t i = 0; i < gated.size(); ++i) gated[i] *= upped[i] / (1 + std::exp(-gated[i]));
  Numbers expected = product(gated, down);
  for (size_t i = 0; i < size; ++i) expected[i] += x.at(i);
  compare(kernels, "mlp", y, expected);
}

// The heads of one sequence, normalized and rotated to their positions.
Numbers rotated(Numbers rows, const Array& norm, int heads, int offset) {
  rows = normalized(std::move(rows), norm, D);
  for (size_t n = 0; n < rows.size() / D; ++n) {
    for (int i = 0; i < D / 2; ++i) {
      const double angle = (offset + static_cast<int>(n) / heads) * std::pow(1e4, -2.0 * i / D);
      double &a = rows[n * D + i], &b = rows[n * D + D / 2 + i];
      const double before = a;
      a = before * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + before * std::sin(angle);
    }
  }
  return rows;
}

struct CheckedSequence : Sequence {
  using Sequence::Sequence;

  // The result of `compute`. Call it first: `compute` changes the cached keys and values.
  Numbers expected() const {
    const Numbers normal = normalized(x.numbers(), norm, E);
    const Numbers queries = rotated(product(normal, q, &q_bias), q_norm, H, offset);
    const Numbers new_keys = rotated(product(normal, k), k_norm, Hkv, offset);
    const Numbers new_values = product(normal, v);
    Numbers heads(size_t(length) * H * D);
    for (int row = 0; row < length * H; ++row) {
      const int head = row % H / (H / Hkv), last = offset + row / H + 1;
      double total = 0;
      for (int key = 0; key < last; ++key) {
        const auto number = [&](const Array& cache, const Numbers& added, int d) {
          return key < offset ? cache.at((size_t(head) * capacity + key) * D + d)
                              : added[(size_t(key - offset) * Hkv + head) * D + d];
        };
        double score = 0;
        for (int d = 0; d < D; ++d) score += queries[size_t(row) * D + d] * number(keys, new_keys, d);
        const double weight = std::exp(score / std::sqrt(D));
        total += weight;
        for (int d = 0; d < D; ++d) {
          heads[size_t(row) * D + d] += weight * number(values, new_values, d);
        }
      }
      for (int d = 0; d < D; ++d) heads[size_t(row) * D + d] /= total;
    }
    Numbers result = product(heads, o);
    for (size_t i = 0; i < result.size(); ++i) result[i] += x.at(i);
    return result;
  }
};

// Layers with other frequencies or another magnitude than the layer before get their own table.
void check_rope_table(const KernelTable& kernels) {
  const int32_t positions[] = {3, 9};
  const float slow[] = {0.5f, 0.25f}, fast[] = {1, 2};
  RopeTable table;
  const auto cosine = [&](const float* frequencies, float magnitude) {
    return table.get(kernels, {positions, 2, true}, {frequencies, 2, false, magnitude})[4];
  };
  for (const auto& [frequencies, magnitude] :
       {std::pair(slow, 1.0f), {slow, 1.0f}, {fast, 1.0f}, {fast, 2.0f}, {slow, 2.0f}}) {
    const double expected = magnitude * std::cos(9.0 * frequencies[0]);
    expect(std::fabs(cosine(frequencies, magnitude) - expected) < 1e-6, kernels,
           "the cosine of the second position");
  }
}

}  // namespace

void check_layers(const KernelTable& kernels, Type type) {
  check_rope_table(kernels);
  for (int rows : {1, 5}) check_mlp(kernels, type, Phase::decode, rows);
  for (int rows : {1, 2, 35}) check_mlp(kernels, type, Phase::prefill, rows);
  for (int length : {1, 7}) {
    for (Phase phase : {Phase::prefill, Phase::decode}) {
      CheckedSequence sequence(type, length, 21);
      const Numbers expected = sequence.expected();
      sequence.compute(kernels, phase);
      compare(kernels, "attention layer", sequence.y, expected);
    }
  }
}

}  // namespace tinyllm::check
