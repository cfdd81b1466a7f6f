// Arrays that a block of layers was told of once and computes with for every token: computed, without
// gaps, and where they are for as long as the block is. As inputs of each primitive they would be
// looked at anew for every token, and there are twenty of them to a block.
#pragma once

#include <optional>
#include <vector>

#include "weight_arrays.h"
#include "weights.h"

namespace tinyllm {

class HeldArrays {
 public:
  // The numbers of an array that may be missing.
  const void* hold(const std::optional<mlx::core::array>& array);

  // A weight of so many columns.
  Weights hold(const WeightArrays& w, int columns);

 private:
  std::vector<mlx::core::array> arrays_;
};

}  // namespace tinyllm
