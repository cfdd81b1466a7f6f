// The threadgroup variables of the running group, with a gap after each that nothing may touch.
#pragma once
#include <stdint.h>

#include "access_set.h"
#include "abi.h"

namespace metalhost {

struct Variable {
  int id;
  uint32_t offset, bytes;
  const char* name;
};

// Forgets the variables, and poisons what the last group wrote.
void renew_threadgroup_memory();

bool in_threadgroup_memory(const void* address);
uint32_t threadgroup_offset(const void* address);

// The variable that holds all of these bytes, or null.
const Variable* variable_holding(uint32_t offset, uint32_t bytes);
// The last variable that begins at or before `offset`, or null.
const Variable* variable_before(uint32_t offset);

Shadow& threadgroup_shadow(uint32_t offset);

}  // namespace metalhost
