// Every kernel of every instruction set of this machine against float64, without MLX or Python.
//
// For what Python tests cannot do: run under qemu for another architecture, and under sanitizers
// with each input in an allocation of exactly its size. `check.sh` builds and runs it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "../half.h"
#include "../tiers.h"

namespace {

using namespace tinyllm;

std::mt19937 generator(0);
int failures = 0;

double normal() { return std::normal_distribution<double>()(generator); }

// Numbers of one type, in an allocation of exactly their size.
struct Array {
  Array(Type type, size_t size) : type(type), bytes(size * (type == Type::float32 ? 4 : 2)) {}

  double at(size_t i) const {
    const void* data = bytes.data();
    switch (type) {
      case Type::float32: return static_cast<const float*>(data)[i];
      case Type::float16: return to_float(static_cast<const Float16*>(data)[i]);
      default: return to_float(static_cast<const BFloat16*>(data)[i]);
    }
  }

  void set(size_t i, double value) {
    void* data = bytes.data();
    float x = static_cast<float>(value);
    switch (type) {
      case Type::float32: static_cast<float*>(data)[i] = x; break;
      case Type::float16: static_cast<Float16*>(data)[i] = from_float<Float16>(x); break;
      default: static_cast<BFloat16*>(data)[i] = from_float<BFloat16>(x); break;
    }
  }

  static Array random(Type type, size_t size) {
    Array array(type, size);
    for (size_t i = 0; i < size; ++i) array.set(i, normal());
    return array;
  }

  Type type;
  std::vector<char> bytes;
};

// The bars of the contract, relative to the largest number that is expected.
double tolerance(Type type) {
  return type == Type::float32 ? 1e-5 : type == Type::float16 ? 2e-3 : 1.6e-2;
}

void compare(const Kernels& kernels, const char* what, const Array& actual,
             const std::vector<double>& expected) {
  double size = 0, error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    size = std::max(size, std::fabs(expected[i]));
    error = std::max(error, std::fabs(actual.at(i) - expected[i]));
  }
  if (error <= tolerance(actual.type) * size) return;
  std::printf("%s %s: error %g over %g\n", kernels.name, what, error, tolerance(actual.type) * size);
  ++failures;
}

// A packed matrix of random bits, and the numbers that its codes stand for.
struct Matrix {
  Matrix(int rows, int columns, int bits, int group, Type type)
      : codes(size_t(rows) * columns * bits / 8),
        scales(Array::random(type, size_t(rows) * columns / group)),
        biases(Array::random(type, size_t(rows) * columns / group)) {
    for (uint8_t& byte : codes) byte = generator();
    w = {codes.data(), scales.bytes.data(), biases.bytes.data(), rows, columns, bits, group,
         Mode::affine, type};
  }

  double at(int n, int k) const {
    size_t bit = (size_t(n) * w.columns + k) * w.bits;
    unsigned code = 0;
    for (int i = 0; i < w.bits; ++i, ++bit) code |= (codes[bit / 8] >> bit % 8 & 1u) << i;
    size_t group = (size_t(n) * w.columns + k) / w.group;
    return code * scales.at(group) + biases.at(group);
  }

  std::vector<uint8_t> codes;
  Array scales, biases;
  Weights w;
};

void check_linear(const Kernels& kernels, Type type, int bits, int group, int rows) {
  const int N = 27, K = 256;
  Matrix matrix(N, K, bits, group, type);
  Array x = Array::random(type, size_t(rows) * K), y(type, size_t(rows) * N);
  std::vector<float> floats(size_t(rows) * K), sums(size_t(rows) * K / group);
  kernels.to_floats(x.bytes.data(), type, floats.data(), floats.size());
  kernels.group_sums(floats.data(), sums.size(), group, sums.data());
  LinearTask task{.x = floats.data(), .rows = rows, .sums = sums.data(), .w = &matrix.w,
                  .y = y.bytes.data(), .type = type};
  std::vector<int8_t> planes(2 * floats.size());
  std::vector<float> plane_scales(sums.size());
  if (rows <= kFewRows && kernels.linear_takes_planes(matrix.w, type)) {
    kernels.linear_planes(floats.data(), floats.size(), matrix.w, planes.data(),
                          plane_scales.data());
    task.planes = planes.data(), task.plane_scales = plane_scales.data();
  }
  std::vector<float> scratch(kernels.linear_scratch(task));
  for (int64_t part = 0; part < kernels.linear_parts(task); ++part) {
    kernels.linear_part(task, part, scratch.data());
  }
  std::vector<double> expected(size_t(rows) * N);
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < N; ++n) {
      for (int k = 0; k < K; ++k) expected[m * N + n] += x.at(m * K + k) * matrix.at(n, k);
    }
  }
  compare(kernels, "linear", y, expected);
}

void check_rms_norm(const Kernels& kernels, Type type, int width) {
  Array x = Array::random(type, 3 * width), w = Array::random(type, width), y(type, 3 * width);
  kernels.rms_norm_rows({x.bytes.data(), w.bytes.data(), y.bytes.data(), width, 1e-6f, type}, 0, 3);
  std::vector<double> expected(3 * width);
  for (int row = 0; row < 3; ++row) {
    double squares = 0;
    for (int i = 0; i < width; ++i) squares += x.at(row * width + i) * x.at(row * width + i);
    for (int i = 0; i < width; ++i) {
      expected[row * width + i] = x.at(row * width + i) / std::sqrt(squares / width + 1e-6) * w.at(i);
    }
  }
  compare(kernels, "rms_norm", y, expected);
}

void check_swiglu(const Kernels& kernels, Type type, int size) {
  Array gate = Array::random(type, size), up = Array::random(type, size), y(type, size);
  kernels.swiglu_range({gate.bytes.data(), up.bytes.data(), y.bytes.data(), type}, 0, size);
  std::vector<double> expected(size);
  for (int i = 0; i < size; ++i) expected[i] = gate.at(i) / (1 + std::exp(-gate.at(i))) * up.at(i);
  compare(kernels, "swiglu", y, expected);
}

void check_rope(const Kernels& kernels, Type type, int dim) {
  const int L = 3, H = 2, half = dim / 2;
  Array x = Array::random(type, L * H * dim), y(type, L * H * dim);
  std::vector<int32_t> positions = {4, 5, 6};
  std::vector<float> frequencies(half);
  for (int i = 0; i < half; ++i) frequencies[i] = std::pow(1e4, -double(i) / half);
  RopeTask task{x.bytes.data(), {L * H * dim, H * dim, dim}, y.bytes.data(), positions.data(),
                frequencies.data(), L, H, dim, true, false, 1.0f, type};
  kernels.rope_tokens(task, 0, L);
  std::vector<double> expected(L * H * dim);
  for (int n = 0; n < L * H; ++n) {
    for (int i = 0; i < half; ++i) {
      double angle = positions[n / H] * std::pow(1e4, -double(i) / half);
      double a = x.at(n * dim + i), b = x.at(n * dim + half + i);
      expected[n * dim + i] = a * std::cos(angle) - b * std::sin(angle);
      expected[n * dim + half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  compare(kernels, "rope", y, expected);
}

void check_attention(const Kernels& kernels, Type type, int dim) {
  const int H = 4, G = 2, L = 3, S = 11, kv = H / G;
  Array q = Array::random(type, H * L * dim), k = Array::random(type, kv * S * dim);
  Array v = Array::random(type, kv * S * dim), y(type, H * L * dim);
  AttentionTask task{};
  task.q = q.bytes.data(), task.k = k.bytes.data(), task.v = v.bytes.data();
  task.y = y.bytes.data();
  task.q_strides[1] = L * dim, task.k_strides[1] = task.v_strides[1] = S * dim;
  task.q_strides[2] = task.k_strides[2] = task.v_strides[2] = dim;
  task.heads = H, task.kv_heads = kv, task.length = L, task.keys = S, task.dim = dim;
  task.scale = 1 / std::sqrt(float(dim));
  task.causal = true;
  task.type = type;
  std::vector<float> scratch(kernels.attention_scratch(task));
  for (int row = 0; row < H * L; ++row) kernels.attention_row(task, row, scratch.data());
  std::vector<double> expected(H * L * dim);
  for (int h = 0; h < H; ++h) {
    for (int l = 0; l < L; ++l) {
      std::vector<double> weights(l + S - L + 1);
      double total = 0;
      for (size_t j = 0; j < weights.size(); ++j) {
        double score = 0;
        for (int d = 0; d < dim; ++d) {
          score += q.at((h * L + l) * dim + d) * k.at((h / G * S + j) * dim + d);
        }
        total += weights[j] = std::exp(score / std::sqrt(dim));
      }
      for (size_t j = 0; j < weights.size(); ++j) {
        for (int d = 0; d < dim; ++d) {
          expected[(h * L + l) * dim + d] += weights[j] / total * v.at((h / G * S + j) * dim + d);
        }
      }
    }
  }
  compare(kernels, "attention", y, expected);
}

}  // namespace

int main() {
  for (const Kernels* kernels : tiers()) {
    for (Type type : {Type::float32, Type::float16, Type::bfloat16}) {
      for (int bits : {2, 3, 4, 5, 6, 8}) {
        for (int group : {32, 64, 128}) {
          for (int rows : {1, 2, 3, 4, 9}) check_linear(*kernels, type, bits, group, rows);
        }
      }
      for (int width : {1, 7, 16, 33, 100}) check_rms_norm(*kernels, type, width);
      for (int size : {1, 7, 16, 33, 100}) check_swiglu(*kernels, type, size);
      for (int dim : {2, 10, 64, 128}) check_rope(*kernels, type, dim);
      for (int dim : {5, 16, 64, 80}) check_attention(*kernels, type, dim);
    }
    std::printf("%s checked\n", kernels->name);
  }
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
