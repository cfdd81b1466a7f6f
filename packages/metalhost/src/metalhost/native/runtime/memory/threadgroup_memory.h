// Memory of the running group's threadgroup variables.
#pragma once
#include <stdint.h>

#include "abi.h"
#include "memory/shadow.h"

namespace metalhost {

struct Variable {
  int id;
  uint32_t offset, bytes;
  const char* name;
};

// Removes all variables, and poisons the memory that earlier groups have used.
void reset_threadgroup_memory();

bool in_threadgroup_memory(const void* address);
uint32_t threadgroup_offset(const void* address);

// Returns the variable that contains all of these bytes, or null.
const Variable* variable_containing(uint32_t offset, uint32_t bytes);
// Returns the last variable that begins at or before `offset`, or null.
const Variable* variable_before(uint32_t offset);

Shadow& threadgroup_shadow(uint32_t offset);

}  // namespace metalhost
