#include "layers/moe.h"

#include <cstring>
#include <vector>

#include "runtime/parallel.h"
#include "layers/products.h"
#include "layers/routing.h"

namespace tinyllm {
namespace {

const void* moved(const void* data, int64_t bytes) {
  return data ? static_cast<const char*>(data) + bytes : nullptr;
}

// The row of x of each choice, as the runs have them.
Aligned<char> gathered(const Routes& routes, const MoeBlockTask& t, const char* x, int64_t bytes) {
  auto rows = aligned<char>(t.rows * t.chosen * bytes);
  in_chunks(t.rows, t.chosen * t.router.columns, [&](int64_t first, int64_t last) {
    for (int64_t i = first * t.chosen; i < last * t.chosen; ++i) {
      std::memcpy(rows.get() + routes.places[i] * bytes, x + i / t.chosen * bytes, bytes);
    }
  });
  return rows;
}

// The operand of each run: rows from `rows` on.
std::vector<Operand> operands(const Kernels& kernels, const Routes& routes, const MoeBlockTask& t,
                              const char* rows, int columns) {
  std::vector<Operand> found;
  for (const Run& run : routes.runs) {
    found.emplace_back(kernels, rows + run.first * columns * size_of(t.type), t.type, run.count,
                       columns, t.phase);
  }
  return found;
}

}  // namespace

Weights Experts::operator[](int64_t expert) const {
  Weights found = first;
  found.data = moved(first.data, expert * data_bytes);
  found.scales = moved(first.scales, expert * scale_bytes);
  found.biases = moved(first.biases, expert * bias_bytes);
  return found;
}

void run(const Kernels& kernels, const MoeBlockTask& t) {
  const int width = t.router.columns, hidden = t.gate.first.rows;
  const int64_t size = size_of(t.type), choices = t.rows * t.chosen;
  const char* x = static_cast<const char*>(t.x);
  Aligned<char> normal;
  if (t.norm.weight) {
    normal = aligned<char>(t.rows * width * size);
    const RmsNormTask norm{t.x, t.norm.weight, normal.get(), width, t.norm.eps, t.type};
    in_chunks(t.rows, width,
              [&](int64_t first, int64_t last) { kernels.rms_norm_rows(norm, first, last); });
    x = normal.get();
  }
  const Routes routes(kernels, t, x);

  // All experts of a single token have the same operand.
  const bool single = t.rows == 1;
  const Aligned<char> rows = single ? nullptr : gathered(routes, t, x, width * size);
  Operand token(kernels, x, t.type, 1, width, t.phase);
  std::vector<Operand> of_runs;
  if (!single) of_runs = operands(kernels, routes, t, rows.get(), width);
  auto gated = aligned<char>(choices * hidden * size), up = aligned<char>(choices * hidden * size);
  auto said = aligned<char>(choices * width * size);
  std::vector<Operand> between = operands(kernels, routes, t, gated.get(), hidden);

  std::vector<Weights> weights;  // gate, up and down of each run
  for (const Run& run : routes.runs) {
    weights.insert(weights.end(), {t.gate[run.expert], t.up[run.expert], t.down[run.expert]});
  }
  std::vector<GatedProduct> gates;
  std::vector<Product> downs;
  for (size_t i = 0; i < routes.runs.size(); ++i) {
    const int64_t at = routes.runs[i].first, inner = at * hidden * size;
    const Weights* of_run = &weights[3 * i];
    gates.push_back({single ? &token : &of_runs[i], of_run, of_run + 1, up.get() + inner,
                     gated.get() + inner});
    downs.push_back({&between[i], of_run + 2, nullptr, nullptr, said.get() + at * width * size});
  }
  multiply_gated(kernels, gates);
  multiply(kernels, downs);

  const WeightedSumTask sum{said.get(), routes.places.data(), routes.shares.data(), t.chosen, width,
                            t.residual, t.y, t.type};
  in_chunks(t.rows, t.chosen * width,
            [&](int64_t first, int64_t last) { kernels.weighted_sums(sum, first, last); });
}

}  // namespace tinyllm
