// Attention against float64.
#pragma once

#include "../kernels.h"

namespace tinyllm::check {

void check_attention(const Kernels& kernels, Type type);

}  // namespace tinyllm::check
