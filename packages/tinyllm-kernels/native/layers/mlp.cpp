#include "layers/mlp.h"

#include "layers/products/products.h"
#include "runtime/parallel.h"

namespace tinyllm {

void run(const Kernels& kernels, const MlpTask& t) {
  const int width = t.gate.columns, hidden = t.gate.rows;
  const int64_t size = size_of(t.type);
  auto normalized = aligned<char>(t.rows * width * size);
  const RmsNormTask norm{t.x, t.norm.weight, normalized.get(), width, t.norm.eps, t.type};
  parallel_for(t.rows, width,
               [&](int64_t first, int64_t last) { kernels.rms_norm_rows(norm, first, last); });

  Operand x(kernels, normalized.get(), t.type, t.rows, width, t.phase);
  auto gated = aligned<char>(t.rows * hidden * size), up = aligned<char>(t.rows * hidden * size);
  multiply_gated(kernels, {{&x, &t.gate, &t.up, up.get(), gated.get()}});

  Operand hidden_rows(kernels, gated.get(), t.type, t.rows, hidden, t.phase);
  multiply(kernels, {{&hidden_rows, &t.down, nullptr, t.residual, t.y}});
}

}  // namespace tinyllm
