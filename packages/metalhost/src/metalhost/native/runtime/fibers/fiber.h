// Fibers: a stack for each Metal thread, and the switch between stacks.
#pragma once
#include <stdint.h>

namespace metalhost {

// Reserves `count` stacks. Guard pages below each stack trap an overflow, so that it cannot
// overwrite the next stack.
void map_stacks(uint32_t count);

// Initializes the stack of thread `index`, and returns its top. The first switch to it calls
// `entry`, which must not return.
void* fresh_stack(uint32_t index, void (*entry)());

bool on_fiber_stack(const void* address);
bool on_guard_page(const void* address);

}  // namespace metalhost

// Pushes the callee-saved registers on the current stack, stores its top in *saved, and continues
// on the stack whose top is `next`.
extern "C" void metalhost_switch(void** saved, void* next);
