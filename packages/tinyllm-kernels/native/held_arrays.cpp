#include "held_arrays.h"

#include "mlx/ops.h"
#include "weight_inputs.h"

namespace tinyllm {
namespace mx = mlx::core;

const void* HeldArrays::hold(const std::optional<mx::array>& array) {
  if (!array) return nullptr;
  mx::array held = *array;
  held.eval();
  if (!held.flags().row_contiguous) {
    held = mx::contiguous(held);
    held.eval();
  }
  arrays_.push_back(held);
  return held.data<void>();
}

Weights HeldArrays::hold(const WeightArrays& w, int columns) {
  Weights found = describe(w, columns);
  found.data = hold(w.w), found.scales = hold(w.scales), found.biases = hold(w.biases);
  return found;
}

}  // namespace tinyllm
