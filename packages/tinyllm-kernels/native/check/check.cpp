// Every kernel of every instruction set of this machine against float64, without MLX or Python.
//
// For what Python tests cannot do: run under qemu for another architecture, and under sanitizers
// with each input in an allocation of exactly its size. `check.sh` builds and runs it, with the name
// of an instruction set.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "../product.h"
#include "attention.h"
#include "matrix.h"

namespace {

using namespace tinyllm;
using namespace tinyllm::check;

#if defined(__aarch64__)
constexpr const char* kMachine = "aarch64";
#else
constexpr const char* kMachine = "x86-64";
#endif

void check_linear(const Kernels& kernels, Type type, int bits, int group, Tokens tokens,
                  int rows) {
  const int N = 27, K = 256;
  Matrix matrix(N, K, bits, group, type);
  Array x = Array::random(type, size_t(rows) * K), y(type, size_t(rows) * N);
  Array residual = Array::random(type, size_t(rows) * N);
  Operand operand(kernels, x.bytes.data(), type, rows, K, tokens);
  multiply(kernels, operand, {{&matrix.w, nullptr, residual.bytes.data(), y.bytes.data()}});
  std::vector<double> expected(size_t(rows) * N);
  for (int m = 0; m < rows; ++m) {
    for (int n = 0; n < N; ++n) {
      expected[m * N + n] = residual.at(m * N + n);
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

// Codes are exact if none of the numbers is farther from what it stands for than half a step.
void check_quantize(const Kernels& kernels, Type type, int bits, int group) {
  const int D = 256;
  Array row = Array::random(type, D);
  Array scales(type, D / group), biases(type, D / group);
  std::vector<uint8_t> codes(D * bits / 8);
  kernels.quantize_row({row.bytes.data(), codes.data(), scales.bytes.data(), biases.bytes.data(), D,
                        bits, group, type});
  Array found(Type::float32, D);
  std::vector<double> expected(D);
  for (int d = 0; d < D; ++d) {
    const unsigned code = codes[d * bits / 8] >> d * bits % 8 & ((1u << bits) - 1);
    const double scale = scales.at(d / group);
    const double steps = (row.at(d) - biases.at(d / group)) / scale;
    // The ends of the range are a rounding of the scale away, which is that of its type.
    found.set(d, std::fabs(steps - code) <= 0.5 + (1 << bits) * tolerance(type) ? 1 : 0);
    expected[d] = 1;
  }
  compare(kernels, "quantize", found, expected);
}

void check_rope(const Kernels& kernels, Type type, int dim) {
  const int L = 3, H = 2, half = dim / 2;
  Array x = Array::random(type, L * H * dim), y(type, L * H * dim);
  std::vector<int32_t> positions = {4, 5, 6};
  std::vector<float> frequencies(half);
  for (int i = 0; i < half; ++i) frequencies[i] = std::pow(1e4, -double(i) / half);
  RopeTask task{x.bytes.data(), {L * H * dim, H * dim, dim}, y.bytes.data(),
                {L * H * dim, H * dim, dim}, positions.data(), frequencies.data(), L, H, dim, true,
                false, 1.0f, type};
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

void check_all(const Kernels& kernels) {
  for (Type type : {Type::float32, Type::float16, Type::bfloat16}) {
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      for (int group : {32, 64, 128}) {
        for (int rows : {1, 3, 6}) {
          check_linear(kernels, type, bits, group, Tokens::decoded, rows);
        }
        for (int rows : {2, 9}) check_linear(kernels, type, bits, group, Tokens::prompt, rows);
      }
    }
    for (int width : {1, 7, 16, 33, 100}) check_rms_norm(kernels, type, width);
    for (int size : {1, 7, 16, 33, 100}) check_swiglu(kernels, type, size);
    for (int dim : {2, 10, 64, 128}) check_rope(kernels, type, dim);
    for (int bits : {4, 8}) {
      for (int group : {32, 64, 128}) check_quantize(kernels, type, bits, group);
    }
    check_attention(kernels, type);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::printf("expected the name of an instruction set, such as \"portable\"\n");
    return EXIT_FAILURE;
  }
  const std::string_view name = arguments[1];
  const auto is_wanted = [&](const Kernels* kernels) { return kernels->name == name; };
  const auto found = std::ranges::find_if(tiers(), is_wanted);
  if (found == tiers().end()) {
    std::printf("%s: not checked, this machine cannot run it\n", arguments[1]);
    return EXIT_SUCCESS;
  }
  check_all(**found);
  std::printf("%s: checked, %d failures, %s\n", arguments[1], failures, kMachine);
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
