// Rows of numbers to codes of 4 or 8 bits, as MLX packs them: what a cache does with new tokens.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct QuantizeTask {
  const void* row;  // D numbers
  void* codes;      // D bits/8 bytes
  void* scales;     // D/group numbers, as the biases
  void* biases;
  int64_t dim;
  int bits, group;
  Type type;  // of the row, the scales and the biases
};

}  // namespace tinyllm
