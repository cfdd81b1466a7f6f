#include "layers/mlp.h"

#include "layers/products/products.h"
#include "runtime/parallel.h"

namespace tinyllm {

Aligned<char> normalize(const KernelTable& kernels, const Norm& norm, const void* x, int64_t rows,
                        int width, Type type, int64_t stride) {
  auto normalized = aligned<char>(rows * stride * size_of(type));
  const RmsNormTask task{x, norm.weight, normalized.get(), width, norm.eps, type, stride};
  parallel_for(rows, width,
               [&](int64_t first, int64_t last) { kernels.rms_norm_rows(task, first, last); });
  return normalized;
}

void run_mlp(const KernelTable& kernels, const MlpTask& t) {
  const int width = t.gate.columns, hidden = t.gate.rows;
  const int64_t size = size_of(t.type);
  const int64_t stride = row_stride(kernels, t.type, t.phase, width);
  const int64_t hidden_stride = row_stride(kernels, t.type, t.phase, hidden);
  const auto normalized = normalize(kernels, t.norm, t.x, t.rows, width, t.type, stride);
  Operand x(kernels, normalized.get(), t.type, t.rows, width, t.phase, stride);
  auto gated = aligned<char>(t.rows * hidden_stride * size);
  auto up = aligned<char>(t.rows * hidden_stride * size);
  multiply_gated(kernels, {{&x, &t.gate, &t.up, up.get(), gated.get(), hidden_stride}});

  Operand hidden_rows(kernels, gated.get(), t.type, t.rows, hidden, t.phase, hidden_stride);
  multiply(kernels, {{&hidden_rows, &t.down, nullptr, t.residual, t.y}});
}

}  // namespace tinyllm
