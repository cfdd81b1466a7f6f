// A program that checks every kernel of one instruction set against float64, without MLX or Python.
//
// It covers two gaps of the Python tests: it runs under qemu for other architectures, and under
// sanitizers with each input in an allocation of exactly its size. `check.sh` builds and runs it. The
// argument is the name of an instruction set.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "check/checks.h"
#include "check/data/array.h"
#include "dispatch/kernel_table.h"

// Weak, as in dispatch.cpp: a build may leave an instruction set out.
namespace tinyllm::amx {
extern const KernelTable kernels __attribute__((weak));
}
namespace tinyllm::avx512bf16 {
extern const KernelTable kernels __attribute__((weak));
}

namespace {

using namespace tinyllm;
using namespace tinyllm::check;

#if defined(__aarch64__)
constexpr const char* kMachine = "aarch64";
#else
constexpr const char* kMachine = "x86-64";
#endif

void check_rms_norm(const KernelTable& kernels, Type type, int width) {
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

void check_swiglu(const KernelTable& kernels, Type type, int size) {
  Array gate = Array::random(type, size), up = Array::random(type, size), y(type, size);
  kernels.swiglu_range({gate.bytes.data(), up.bytes.data(), y.bytes.data(), type}, 0, size);
  std::vector<double> expected(size);
  for (int i = 0; i < size; ++i) expected[i] = gate.at(i) / (1 + std::exp(-gate.at(i))) * up.at(i);
  compare(kernels, "swiglu", y, expected);
}

// Checks that each number has the nearest code. MLX's scale gives zero a code of its own, so one
// end of the range may lie beyond the last code: such numbers must have the last code.
void check_quantize(const KernelTable& kernels, Type type, int bits, int group) {
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
    const double steps =
        std::clamp((row.at(d) - biases.at(d / group)) / scale, 0.0, double((1 << bits) - 1));
    // The scale is rounded to its type. Its error counts once for each step.
    found.set(d, std::fabs(steps - code) <= 0.5 + (1 << bits) * tolerance(type) ? 1 : 0);
    expected[d] = 1;
  }
  compare(kernels, "quantize", found, expected);
}

void check_rope(const KernelTable& kernels, Type type, int dim, int rotated) {
  const int L = 3, H = 2, half = rotated / 2;
  Array x = Array::random(type, L * H * dim), y(type, L * H * dim);
  std::vector<int32_t> positions = {4, 5, 6};
  std::vector<float> frequencies(half);
  for (int i = 0; i < half; ++i) frequencies[i] = std::pow(1e4, -double(i) / half);
  std::vector<float> table(L * rotated);
  kernels.rope_table_rows({positions.data(), frequencies.data(), half, 1.0f, table.data()}, 0, L);
  RopeTask task{x.bytes.data(), {L * H * dim, H * dim, dim}, y.bytes.data(),
                {L * H * dim, H * dim, dim}, table.data(), L, H, dim, half, true, false, type};
  kernels.rope_tokens(task, 0, L);
  std::vector<double> expected(L * H * dim);
  for (int n = 0; n < L * H; ++n) {
    for (int i = rotated; i < dim; ++i) expected[n * dim + i] = x.at(n * dim + i);
    for (int i = 0; i < half; ++i) {
      double angle = positions[n / H] * std::pow(1e4, -double(i) / half);
      double a = x.at(n * dim + i), b = x.at(n * dim + half + i);
      expected[n * dim + i] = a * std::cos(angle) - b * std::sin(angle);
      expected[n * dim + half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  compare(kernels, "rope", y, expected);
}

void check_types(const KernelTable& kernels, const std::vector<Type>& types) {
  for (Type type : types) {
    check_linear(kernels, type);
    for (int width : {1, 7, 16, 33, 100}) check_rms_norm(kernels, type, width);
    for (int size : {1, 7, 16, 33, 100}) check_swiglu(kernels, type, size);
    for (int dim : {2, 10, 64, 128}) check_rope(kernels, type, dim, dim);
    for (int rotated : {0, 2, 34, 64}) check_rope(kernels, type, 256, rotated);
    for (int bits : {4, 8}) {
      for (int group : {32, 64, 128}) check_quantize(kernels, type, bits, group);
    }
    check_attention(kernels, type);
    check_layers(kernels, type);
    check_recurrent(kernels, type);
    check_token_choice(kernels, type);
  }
}

void check_all(const KernelTable& kernels) {
  check_types(kernels, {Type::float32, Type::float16, Type::bfloat16});
  check_allocations(kernels);
  check_arena(kernels);
  check_bounds(kernels);
  check_subnormals(kernels);
}

// The kernels named `name`, or null if this machine cannot run them or the build left them out.
const KernelTable* find(std::string_view name) {
  for (const KernelTable* kernels : kernel_tables()) {
    if (kernels->name == name) return kernels;
  }
#if defined(__x86_64__)
  // With the software model of tiles the amx kernels need only vector instructions.
  const bool has_vectors =
      __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  if (name == "amx" && has_vectors) return &amx::kernels;
  // `kernel_tables` omits this set on Intel's processors, which support it: see dispatch.cpp.
  if (name == "avx512bf16" && has_vectors) return &avx512bf16::kernels;
#endif
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  const bool is_short = count == 3 && std::string_view(arguments[2]) == "short";
  if (count != 2 && !is_short) {
    std::printf("expected the name of an instruction set, such as \"avx2\", and \"short\" or nothing\n");
    return EXIT_FAILURE;
  }
  const KernelTable* kernels = find(arguments[1]);
  if (!kernels) {
    std::printf("%s: not checked, this machine cannot run it\n", arguments[1]);
    return EXIT_SUCCESS;
  }
  if (is_short) {
    check_types(*kernels, {Type::bfloat16});
  } else {
    check_all(*kernels);
  }
  std::printf("%s: checked, %d failures, %s\n", kernels->name, failures, kMachine);
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
