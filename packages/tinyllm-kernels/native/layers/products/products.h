// Matrix products on all threads: several products of one operand are one task of the pool.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "layers/products/operand.h"

namespace tinyllm {

// Work on groups of `width` columns of y, such as the features of a head, that begins as soon as
// all columns of a group are computed: they are still in a cache, and no thread waits.
struct Epilogue {
  int64_t width;  // N is a multiple
  // Called once for each group of columns and range of tokens.
  std::function<void(int64_t column_group, int64_t first_token, int64_t last_token)> apply;
};

// y = x w^T + bias + residual, `M N`.
struct Product {
  Operand* x;            // M K
  const Weights* w;      // N K
  const void* bias;      // N, or null
  const void* residual;  // M N, or null
  void* y;               // M N
  int64_t y_stride = 0;  // numbers from a row of y to the next, if not N
  const Epilogue* epilogue = nullptr;  // or null
};

// y = silu(x gate^T) * (x up^T), `M F`.
struct GatedProduct {
  Operand* x;                // M K
  const Weights *gate, *up;  // F K
  void* up_scratch;          // M F, with the type and the stride of y
  void* y;                   // M F
  int64_t y_stride = 0;      // numbers from a row of y to the next, if not F
};

void multiply(const KernelTable& kernels, const std::vector<Product>& products);
void multiply_gated(const KernelTable& kernels, const std::vector<GatedProduct>& products);

}  // namespace tinyllm
