// A benchmark of all products of a pass without MLX or Python: 28 layers of Qwen3-0.6B's shape and
// its head, with weights from memory. It prints milliseconds for some numbers of rows of x, and the
// part of them that brings x into the layouts that kernels read. `run.sh` builds it. Its arguments
// are the bits of a code (16 for dense weights in bfloat16), the columns of a group, `decode` or
// `prefill`, and `int8` for x in int8. A prompt has one row of the head.
//
// The numbers of rows alternate. Each number is the median of 9 passes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#if defined(__AMX_TILE__)
#include "dispatch/tile_permission.h"
#endif

#include "layers/products/products.h"
#include "runtime/huge_pages.h"
#include "runtime/thread_pool.h"

namespace tinyllm::TINYLLM_ISA {
extern const KernelTable kernels;
}

namespace {

using namespace tinyllm;
using TINYLLM_ISA::kernels;

constexpr int kLayers = 28, kWidth = 1024, kHeads = 2048, kHidden = 3072, kVocabulary = 151936;
const std::vector<int> kDecodeRows{1, 2, 4, 8, 12, 16}, kPrefillRows{1, 8, 16, 32, 64, 128, 512};

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

std::mt19937 generator(0);

// Memory of `count` numbers of 16 bits in bfloat16, all near `size`.
Aligned<BFloat16> numbers(int64_t count, float size) {
  auto memory = aligned<BFloat16>(count);
  for (int64_t i = 0; i < count; ++i) {
    memory.get()[i] = from_float<BFloat16>(size * (1 + int(generator() % 256) / 1024.0f));
  }
  return memory;
}

// A matrix of random codes, with interleaved rows, or of numbers in bfloat16.
struct Matrix {
  Matrix(int rows, int columns, int bits, int group, bool int8_activations)
      : codes(aligned<uint32_t>(int64_t{rows} * columns * bits / 32)),
        scales(numbers(int64_t{rows} * columns / group, 0.002f)),
        biases(numbers(int64_t{rows} * columns / group, -0.016f)) {
    const bool dense = bits == 16;
    for (int64_t i = 0; i < int64_t{rows} * columns * bits / 32; ++i) {
      codes.get()[i] = dense ? generator() % 0x800 * 0x10001 + 0x3c003c00 : generator();
    }
    w = {codes.get(), scales.get(), biases.get(), rows, columns, bits, group,
         dense ? Mode::dense : Mode::affine, Type::bfloat16};
    w.int8_activations = int8_activations;
    w.interleaved = kernels.linear_interleaved_rows(w);
    use_huge_pages(codes.get(), int64_t{rows} * columns * bits / 8);
    use_huge_pages(scales.get(), int64_t{rows} * columns / group * 2);
    use_huge_pages(biases.get(), int64_t{rows} * columns / group * 2);
  }

  Aligned<uint32_t> codes;
  Aligned<BFloat16> scales, biases;
  Weights w;
};

struct Layer {
  Layer(int bits, int group, bool int8)
      : q(kHeads, kWidth, bits, group, int8),
        k(kWidth, kWidth, bits, group, int8),
        v(kWidth, kWidth, bits, group, int8),
        o(kWidth, kHeads, bits, group, int8),
        gate(kHidden, kWidth, bits, group, int8),
        up(kHidden, kWidth, bits, group, int8),
        down(kWidth, kHidden, bits, group, int8) {}

  Matrix q, k, v, o, gate, up, down;
};

// Inputs and results of `rows` tokens, used again by every layer.
struct Tokens {
  Tokens(int rows, Phase phase)
      : rows(rows),
        phase(phase),
        x(numbers(rows * stride(kHidden), 1)),
        y(numbers(std::max(rows * (stride(kHeads) + 2 * stride(kWidth)),
                           int64_t{chosen()} * kVocabulary),
                  1)),
        scratch(numbers(rows * stride(kHidden), 1)) {}

  // Numbers from a row of x or y to the next, as in a layer.
  int64_t stride(int64_t columns) const {
    return row_stride(kernels, Type::bfloat16, phase, columns);
  }

  // Rows whose next token is chosen.
  int chosen() const { return phase == Phase::decode ? rows : 1; }

  Operand operand(int columns) const { return operand(columns, rows); }
  Operand operand(int columns, int count) const {
    return {kernels, x.get(), Type::bfloat16, count, columns, phase, stride(columns)};
  }

  int rows;
  Phase phase;
  Aligned<BFloat16> x, y, scratch;
};

void run_products(const std::vector<Layer>& layers, const Matrix& head, Tokens& tokens) {
  BFloat16* y = tokens.y.get();
  for (const Layer& layer : layers) {
    Operand attended = tokens.operand(kWidth);
    const int64_t q_stride = tokens.stride(kHeads), k_stride = tokens.stride(kWidth);
    BFloat16 *k = y + tokens.rows * q_stride, *v = k + tokens.rows * k_stride;
    multiply(kernels, {{&attended, &layer.q.w, nullptr, nullptr, y, q_stride},
                       {&attended, &layer.k.w, nullptr, nullptr, k, k_stride},
                       {&attended, &layer.v.w, nullptr, nullptr, v, k_stride}});
    Operand heads = tokens.operand(kHeads);
    multiply(kernels, {{&heads, &layer.o.w, nullptr, nullptr, y}});
    Operand row = tokens.operand(kWidth);
    multiply_gated(kernels, {{&row, &layer.gate.w, &layer.up.w, tokens.scratch.get(), y,
                              tokens.stride(kHidden)}});
    Operand hidden = tokens.operand(kHidden);
    multiply(kernels, {{&hidden, &layer.down.w, nullptr, nullptr, y}});
  }
  Operand last = tokens.operand(kWidth, tokens.chosen());
  multiply(kernels, {{&last, &head.w, nullptr, nullptr, y}});
}

// Makes the layouts of x that `run_products` needs.
void make_layouts(const Layer& layer, Tokens& tokens) {
  for (int i = 0; i < kLayers; ++i) {
    for (const Matrix* w : {&layer.q, &layer.o, &layer.gate, &layer.down}) {
      LinearTask task{.w = &w->w};
      tokens.operand(w->w.columns).set_x(task);
    }
  }
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

int main(int count, char** arguments) {
#if defined(__AMX_TILE__)
  if (!tinyllm::request_tile_registers()) return EXIT_FAILURE;
#endif
  const int bits = count > 1 ? std::atoi(arguments[1]) : 4;
  const int group = count > 2 ? std::atoi(arguments[2]) : 64;
  const bool int8 = count > 4 && std::string_view(arguments[4]) == "int8";
  std::vector<Layer> layers;
  for (int i = 0; i < kLayers; ++i) layers.emplace_back(bits, group, int8);
  const Matrix head(kVocabulary, kWidth, bits, group, int8);
  if (int8 && !rounds_x_to_int8(kernels.linear_kernel(head.w, Type::bfloat16, Phase::decode, 1))) {
    std::fprintf(stderr, "products: %s has no products of %d bits with x in int8\n", kernels.name,
                 bits);
    return EXIT_FAILURE;
  }
  const bool is_prompt = count > 3 && std::string_view(arguments[3]) == "prefill";
  const std::vector<int>& row_counts = is_prompt ? kPrefillRows : kDecodeRows;
  std::vector<Tokens> tokens;
  for (int rows : row_counts) tokens.emplace_back(rows, is_prompt ? Phase::prefill : Phase::decode);
  std::vector<std::vector<double>> products(tokens.size()), layouts(tokens.size());
  for (int pass = 0; pass < 10; ++pass) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const double begin = now();
      run_products(layers, head, tokens[i]);
      const double middle = now();
      make_layouts(layers[0], tokens[i]);
      if (pass == 0) continue;
      products[i].push_back(middle - begin);
      layouts[i].push_back(now() - middle);
    }
  }
  std::printf("%s, %d threads, %d bits, groups of %d%s\n", kernels.name,
              ThreadPool::shared().threads(), bits, group, int8 ? ", x in int8" : "");
  std::printf("rows  products, ms  of these layouts of x, ms\n");
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::printf("%4d  %12.2f  %23.2f\n", row_counts[i], median(products[i]), median(layouts[i]));
  }
}
