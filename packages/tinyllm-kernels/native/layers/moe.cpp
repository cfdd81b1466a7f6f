#include "layers/moe.h"

#include <cstring>
#include <vector>

#include "layers/products/products.h"
#include "layers/routing.h"
#include "runtime/parallel.h"

namespace tinyllm {
namespace {

const void* offset_by(const void* data, int64_t bytes) {
  return data ? static_cast<const char*>(data) + bytes : nullptr;
}

// Copies the row of each token once for each of its experts, and sorts the copies by expert.
Aligned<char> gather_rows(const Routing& routing, const MoeTask& t, const char* x,
                          int64_t row_bytes) {
  const int64_t per_token = t.experts_per_token;
  auto rows = aligned<char>(t.rows * per_token * row_bytes);
  parallel_for(t.rows, per_token * t.router.columns, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n) {
      const int64_t* sorted_rows = routing.sorted_rows.data() + n * t.terms();
      for (int64_t i = 0; i < per_token; ++i) {
        std::memcpy(rows.get() + sorted_rows[i] * row_bytes, x + n * row_bytes, row_bytes);
      }
    }
  });
  return rows;
}

// One operand for each expert that was chosen. `rows` are sorted by expert. An operand reads its
// rows at its first product, so they may be written after this call.
std::vector<Operand> operands_by_expert(const KernelTable& kernels, const Routing& routing,
                                        const MoeTask& t, const char* rows, int columns) {
  std::vector<Operand> operands;
  for (const ExpertRows& own : routing.experts) {
    operands.emplace_back(kernels, rows + own.first * columns * size_of(t.type), t.type, own.count,
                          columns, t.phase);
  }
  return operands;
}

}  // namespace

Weights Experts::operator[](int64_t expert) const {
  Weights w = first;
  w.data = offset_by(first.data, expert * data_bytes);
  w.scales = offset_by(first.scales, expert * scale_bytes);
  w.biases = offset_by(first.biases, expert * bias_bytes);
  return w;
}

void run_moe(const KernelTable& kernels, const MoeTask& t) {
  const int width = t.router.columns, hidden = t.gate.first.rows;
  const int64_t size = size_of(t.type), sorted_count = t.rows * t.experts_per_token;
  const auto normalized = normalize(kernels, t.norm, t.x, t.rows, width, t.type, width);
  const char* x = normalized.get();
  Operand tokens(kernels, x, t.type, t.rows, width, t.phase);
  const Routing routing(kernels, t, x, tokens);

  // All experts of a single token share one operand, so nothing is gathered.
  const bool is_single = t.rows == 1;
  const Aligned<char> rows = is_single ? nullptr : gather_rows(routing, t, x, width * size);
  std::vector<Operand> inputs;
  if (!is_single) inputs = operands_by_expert(kernels, routing, t, rows.get(), width);
  auto gated = aligned<char>(sorted_count * hidden * size);
  auto up = aligned<char>(sorted_count * hidden * size);
  auto expert_out = aligned<char>(t.rows * t.terms() * width * size);
  std::vector<Operand> hidden_rows = operands_by_expert(kernels, routing, t, gated.get(), hidden);

  std::vector<Weights> weights;  // gate, up and down of each chosen expert
  for (const ExpertRows& own : routing.experts) {
    weights.insert(weights.end(), {t.gate[own.expert], t.up[own.expert], t.down[own.expert]});
  }
  std::vector<GatedProduct> gated_products;
  std::vector<Product> down_products;
  for (size_t i = 0; i < routing.experts.size(); ++i) {
    const int64_t first = routing.experts[i].first;
    const int64_t hidden_offset = first * hidden * size, out_offset = first * width * size;
    const Weights* of_expert = &weights[3 * i];
    gated_products.push_back({is_single ? &tokens : &inputs[i], of_expert, of_expert + 1,
                              up.get() + hidden_offset, gated.get() + hidden_offset});
    down_products.push_back(
        {&hidden_rows[i], of_expert + 2, nullptr, nullptr, expert_out.get() + out_offset});
  }
  Aligned<char> shared_gated, shared_up;
  std::optional<Operand> shared_hidden;
  if (t.shared) {
    const SharedExpert& shared = *t.shared;
    shared_gated = aligned<char>(t.rows * shared.gate.rows * size);
    shared_up = aligned<char>(t.rows * shared.gate.rows * size);
    gated_products.push_back(
        {&tokens, &shared.gate, &shared.up, shared_up.get(), shared_gated.get()});
    shared_hidden.emplace(kernels, shared_gated.get(), t.type, t.rows, shared.gate.rows, t.phase);
    down_products.push_back({&*shared_hidden, &shared.down, nullptr, nullptr,
                             expert_out.get() + sorted_count * width * size});
  }
  multiply_gated(kernels, gated_products);
  multiply(kernels, down_products);

  const WeightedSumTask sum{expert_out.get(),
                            routing.sorted_rows.data(),
                            routing.weights.data(),
                            t.terms(),
                            width,
                            t.x,
                            t.y,
                            t.type};
  parallel_for(t.rows, t.terms() * width,
               [&](int64_t first, int64_t last) { kernels.weighted_sums(sum, first, last); });
}

}  // namespace tinyllm
