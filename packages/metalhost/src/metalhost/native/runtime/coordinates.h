// From numbers to the coordinates that a kernel sees.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace metalhost {

// What all threads of group number `number` of the grid have in common.
Coordinates coordinates_of_group(uint32_t number);

// Those of the thread with this index in the group.
Coordinates coordinates_of(uint32_t index, const Coordinates& of_group);

}  // namespace metalhost
