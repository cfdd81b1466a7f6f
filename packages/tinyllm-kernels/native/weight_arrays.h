// A weight as Python hands it over.
#pragma once

#include <optional>
#include <string>

#include "mlx/array.h"

namespace tinyllm {

// `w` dense, or codes with scales and, in mode "affine", biases.
struct WeightArrays {
  mlx::core::array w;
  std::optional<mlx::core::array> scales, biases;
  int group_size, bits;
  std::string mode;
  int interleaved;  // rows that lie side by side, as `interleaves` said; 0 is none
};

}  // namespace tinyllm
