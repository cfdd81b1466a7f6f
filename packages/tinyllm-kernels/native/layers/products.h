// Products of rows with several matrices: one task for all threads.
#pragma once

#include <vector>

#include "runtime/aligned.h"
#include "dispatch/kernels.h"

namespace tinyllm {

// Rows of x, in the forms in which products want them. Each form is made when it is first asked for.
class Operand {
 public:
  Operand(const Kernels& kernels, const void* x, Type type, int64_t rows, int columns,
          Phase phase)
      : kernels_(kernels), x_(x), type_(type), rows_(rows), columns_(columns), phase_(phase) {}

  int64_t rows() const { return rows_; }
  int columns() const { return columns_; }
  Type type() const { return type_; }

  // Gives `task` the rows, as they are multiplied with its matrix.
  void fill(LinearTask& task);

 private:
  struct Grouped {
    int group, bits;
    Aligned<float> sums, scales;
    Aligned<int8_t> planes;
  };

  const float* floats();
  const uint32_t* tiles();
  // Sums over the groups of w and, for codes of so many bits, planes.
  const Grouped& grouped(const Weights& w, int bits);

  const Kernels& kernels_;
  const void* x_;
  Type type_;
  int64_t rows_;
  int columns_;
  Phase phase_;
  Aligned<float> floats_;
  Aligned<uint32_t> tiles_;
  std::vector<Grouped> grouped_;
};

struct Product {
  Operand* x;
  const Weights* w;
  const void* bias;      // added to each row, or null
  const void* residual;  // added number by number, or null
  void* y;
};

struct GatedProduct {
  Operand* x;
  const Weights *gate, *up;
  void* up_room;  // for as much as y
  void* y;        // M F
};

// y = x w^T + bias + residual for each product.
void multiply(const Kernels& kernels, const std::vector<Product>& products);

// y = silu(x gate^T) * (x up^T) for each.
void multiply_gated(const Kernels& kernels, const std::vector<GatedProduct>& products);

}  // namespace tinyllm
