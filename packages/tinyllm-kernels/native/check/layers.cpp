#include "check/checks.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "check/matrix.h"
#include "layers/attention.h"

namespace tinyllm::check {
namespace {

using Numbers = std::vector<double>;

constexpr float kEps = 1e-6f;
constexpr int E = 128, F = 256, H = 4, Hkv = 2, D = 32;

// A packed matrix with scales so small that products have about the size of x.
Matrix packed(int rows, int columns, Type type) {
  Matrix matrix(rows, columns, 4, 32, type);
  for (Array* part : {&matrix.scales, &matrix.biases}) {
    for (int64_t i = 0; i < int64_t{rows} * columns / 32; ++i) part->set(i, part->at(i) / 64);
  }
  return matrix;
}

Numbers exact(const Array& array, size_t size) {
  Numbers numbers(size);
  for (size_t i = 0; i < size; ++i) numbers[i] = array.at(i);
  return numbers;
}

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

void check_mlp(const Kernels& kernels, Type type, Phase phase, int rows) {
  const size_t size = size_t(rows) * E;
  Array x = Array::random(type, size), norm = Array::random(type, E), y(type, size);
  const Matrix gate = packed(F, E, type), up = packed(F, E, type), down = packed(E, F, type);
  run(kernels, MlpTask{x.bytes.data(), x.bytes.data(), rows, phase, {norm.bytes.data(), kEps},
                            gate.w, up.w, down.w, y.bytes.data(), type});
  const Numbers normal = normalized(exact(x, size), norm, E), upped = product(normal, up);
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

// A sequence of `offset` cached tokens and `length` new ones.
struct Sequence {
  Sequence(Type type, int length, int offset)
      : type(type), length(length), offset(offset), capacity(offset + length + 2) {
    std::iota(positions.begin(), positions.end(), offset);
    for (int i = 0; i < D / 2; ++i) {
      frequencies[i] = static_cast<float>(std::pow(1e4, -2.0 * i / D));
    }
  }

  Heads added(Array& cache) const {
    char* first = cache.bytes.data() + int64_t{offset} * D * size_of(type);
    return {first, {int64_t{Hkv} * capacity * D, int64_t{capacity} * D, D}};
  }

  void compute(const Kernels& kernels, Phase phase) {
    AttentionLayerTask task{};
    task.projection = {.x = x.bytes.data(), .batch = 1, .length = length, .phase = phase,
                   .norm = {norm.bytes.data(), kEps}, .q_norm = {q_norm.bytes.data(), kEps},
                   .k_norm = {k_norm.bytes.data(), kEps}, .q = q.w, .k = k.w, .v = v.w,
                   .q_bias = q_bias.bytes.data(), .k_bias = nullptr, .v_bias = nullptr, .heads = H,
                   .kv_heads = Hkv, .dim = D, .positions = positions.data(), .shares_positions = true,
                   .frequencies = frequencies.data(), .traditional = false, .magnitude = 1,
                   .to_q = {}, .to_k = added(keys), .to_v = added(values), .type = type};
    task.o = o.w, task.residual = x.bytes.data(), task.y = y.bytes.data();
    task.offset = offset, task.scale = 1 / std::sqrt(static_cast<float>(D));
    run(kernels, task);
  }

  // The result of `compute`. Call it first: `compute` changes the cached keys and values.
  Numbers expected() const {
    const Numbers normal = normalized(exact(x, size_t(length) * E), norm, E);
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

  Type type;
  int length, offset, capacity;
  std::vector<int32_t> positions = std::vector<int32_t>(length);
  std::vector<float> frequencies = std::vector<float>(D / 2);
  Array x = Array::random(type, size_t(length) * E), norm = Array::random(type, E);
  Array q_norm = Array::random(type, D), k_norm = Array::random(type, D);
  Array q_bias = Array::random(type, size_t{H} * D), y = Array(type, size_t(length) * E);
  Array keys = Array::random(type, size_t{Hkv} * capacity * D);
  Array values = Array::random(type, size_t{Hkv} * capacity * D);
  Matrix q = packed(H * D, E, type), k = packed(Hkv * D, E, type), v = packed(Hkv * D, E, type);
  Matrix o = packed(E, H * D, type);
};

}  // namespace

void check_layers(const Kernels& kernels, Type type) {
  for (int rows : {1, 5}) check_mlp(kernels, type, Phase::decode, rows);
  for (int rows : {1, 2, 35}) check_mlp(kernels, type, Phase::prefill, rows);
  for (int length : {1, 7}) {
    for (Phase phase : {Phase::prefill, Phase::decode}) {
      Sequence sequence(type, length, 21);
      const Numbers expected = sequence.expected();
      sequence.compute(kernels, phase);
      compare(kernels, "attention layer", sequence.y, expected);
    }
  }
}

}  // namespace tinyllm::check
