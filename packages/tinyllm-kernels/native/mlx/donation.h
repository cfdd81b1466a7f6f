// Outputs that reuse the memory of inputs: a cache array is changed in place.
#pragma once

#include <cstdint>
#include <vector>

#include "mlx/inputs.h"
#include "mlx/operations/primitive.h"

namespace tinyllm {

// Drops the references to the inputs that the other outputs hold. MLX gives each output a list of
// all inputs, and an array with several references is never donated. `inputs`, the list of the
// evaluated output, keeps them alive for the evaluation.
inline void release_inputs(const std::vector<mlx::core::array>& inputs,
                           std::vector<mlx::core::array>& outputs) {
  for (mlx::core::array& out : outputs) {
    if (&out.inputs() != &inputs) out.inputs().clear();
  }
}

// The bytes of inputs that this process has copied because they could not be donated.
int64_t copied_bytes();

// An output with the content of an input. If the input is donatable, the output takes its memory.
// Otherwise new memory is allocated at once, and filled when the task runs. The size of that copy is
// added to `copied_bytes`. The memory of large arrays is moved to pages of 2 MB.
class DonatedInput {
 public:
  // A cache `without_tokens` may be one number that is repeated by strides of zero. It is not copied:
  // the new memory stays uninitialized.
  DonatedInput(const mlx::core::array& from, mlx::core::array& to, bool without_tokens = false);

  // An array that was donated before.
  explicit DonatedInput(mlx::core::array& held) : from_(held), data_(held.data<char>()) {}

  // Returns the output's numbers, contiguous. Copies the input if it was not donated: call it once,
  // in the task.
  char* content() const;

  const std::vector<int64_t>& shape() const { return from_.shape; }
  size_t itemsize() const { return from_.itemsize; }

 private:
  Input from_;
  char* data_;
  bool is_copied_ = false;  // `content` copies the input
};

}  // namespace tinyllm
