// Products of matrices, whatever the kernels make of their size.
#pragma once

#include "array.h"

namespace tinyllm::check {

void check_linear(const Kernels& kernels, Type type);

}  // namespace tinyllm::check
