// The left operand of matrix products, x, in the layouts that kernels read.
#pragma once

#include <vector>

#include "dispatch/kernel_table.h"
#include "runtime/aligned.h"

namespace tinyllm {

// Rows of x `M K`. A kernel reads them as they lie in memory, as floats, packed in tiles of tokens,
// or as integers with sums over quantization groups. Each layout is made at its first use and kept,
// so that several products of the same x share it. `x` must outlive the operand.
class Operand {
 public:
  Operand(const KernelTable& kernels, const void* x, Type type, int64_t rows, int columns,
          Phase phase)
      : Operand(kernels, x, type, rows, columns, phase, columns) {}

  // Rows that are `stride` numbers apart, which must be the result of `row_stride`: only the
  // kernels that read x unpacked allow for gaps.
  Operand(const KernelTable& kernels, const void* x, Type type, int64_t rows, int columns,
          Phase phase, int64_t stride)
      : kernels_(kernels),
        x_(x),
        type_(type),
        rows_(rows),
        columns_(columns),
        phase_(phase),
        stride_(stride) {}

  int64_t rows() const { return rows_; }
  Type type() const { return type_; }

  // Sets the fields of `task` for x, in the layout that the product with `task.w` reads.
  void set_x(LinearTask& task);

 private:
  // The sum of each group of `group` columns, of each row.
  struct GroupSums {
    int group;
    Aligned<float> sums;
  };
  // The integers of x for `kernel`, with a sum and a scale of each group.
  struct Quantized {
    LinearKernel kernel;
    int group, bits;
    Aligned<float> sums, scales;
    Aligned<int8_t> integers;
  };

  const float* floats();
  const uint32_t* packed();
  void set_unpacked_x(LinearTask& task);
  const float* group_sums(int group);
  const Quantized& quantized(LinearKernel kernel, const Weights& w);
  void quantize(LinearKernel kernel, const Weights& w, XRange range, float* buffer,
                const QuantizedX& to);

  const KernelTable& kernels_;
  const void* x_;
  Type type_;
  int64_t rows_;
  int columns_;
  Phase phase_;
  int64_t stride_;
  Aligned<float> floats_;
  Aligned<uint32_t> packed_;
  Aligned<BFloat16> padded_;
  std::vector<GroupSums> group_sums_;
  std::vector<Quantized> quantized_;
};

// Numbers from one row to the next in memory for rows of `columns` numbers that are an operand.
int64_t row_stride(const KernelTable& kernels, Type type, Phase phase, int64_t columns);

}  // namespace tinyllm
