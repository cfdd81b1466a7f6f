// Outputs that are inputs, changed in part: in the same memory, if nobody else will read it.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "mlx/inputs.h"
#include "mlx/primitive.h"

namespace tinyllm {

// Each output holds all inputs, and none could be taken over. They let go of them at the end of the
// evaluation in any case; the one whose inputs these are is enough until then.
inline void let_go(const std::vector<mlx::core::array>& inputs,
                   std::vector<mlx::core::array>& outputs) {
  for (mlx::core::array& out : outputs) {
    if (&out.inputs() != &inputs) out.inputs().clear();
  }
}

// An input on its way to an output. The memory is chosen at once, and copied to, if it must be, when
// the task runs.
class TakenOver {
 public:
  TakenOver(const mlx::core::array& from, mlx::core::array& to) : from_(from) {
    if (from.is_donatable() && from.flags().row_contiguous) {
      to.copy_shared_buffer(from);
      data_ = to.data<char>();
    } else {
      data_ = allocate(to);
    }
  }

  // The output's numbers, without gaps, as the input had them.
  char* numbers() const {
    if (from_.data != data_) {
      std::unique_ptr<char[]> copy;
      std::memcpy(data_, from_.compact(copy), from_.size * from_.itemsize);
    }
    return data_;
  }

  const std::vector<int64_t>& shape() const { return from_.shape; }
  size_t itemsize() const { return from_.itemsize; }

 private:
  Input from_;
  char* data_;
};

}  // namespace tinyllm
