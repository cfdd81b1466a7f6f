// What is chosen from scores against float64.
#pragma once

#include "../kernels.h"

namespace tinyllm::check {

void check_choice(const Kernels& kernels, Type type);

}  // namespace tinyllm::check
