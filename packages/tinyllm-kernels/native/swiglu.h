// y = gate sigmoid(gate) up, number by number.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

struct SwigluTask {
  const void* gate;
  const void* up;
  void* y;
  Type type;  // of all three
};

}  // namespace tinyllm
