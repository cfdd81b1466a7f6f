// Matrix products on all threads: several products of one operand are one task of the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "layers/products/operand.h"

namespace tinyllm {

// Columns of y that are processed further as soon as all of them are computed, such as the features
// of a head: they are still in a cache, and no thread waits.
struct ColumnBlocks {
  int64_t width;  // of a block; N is a multiple
  // Called once for each block and range of tokens.
  std::function<void(int64_t block, int64_t first_token, int64_t last_token)> process;
};

// y = x w^T + bias + residual, `M N`.
struct Product {
  Operand* x;            // M K
  const Weights* w;      // N K
  const void* bias;      // N, or null
  const void* residual;  // M N, or null
  void* y;               // M N
  int64_t y_stride = 0;  // numbers from a row of y to the next, if not N
  const ColumnBlocks* blocks = nullptr;  // of y, or null
};

// y = silu(x gate^T) * (x up^T), `M F`.
struct GatedProduct {
  Operand* x;                // M K
  const Weights *gate, *up;  // F K
  void* up_scratch;          // M F, of the type of y
  void* y;                   // M F
  int64_t y_stride = 0;      // numbers from a row of y to the next, if not F
};

void multiply(const KernelTable& kernels, const std::vector<Product>& products);
void multiply_gated(const KernelTable& kernels, const std::vector<GatedProduct>& products);

}  // namespace tinyllm
