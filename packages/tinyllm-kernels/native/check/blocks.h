// Both halves of a block, with packed weights, against float64.
#pragma once

#include "../kernels.h"

namespace tinyllm::check {

// For decoded tokens and for a text behind cached keys.
void check_blocks(const Kernels& kernels, Type type);

}  // namespace tinyllm::check
