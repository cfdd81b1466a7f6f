// A stack of its own for each Metal thread, and the switch from one to another.
#pragma once
#include <stdint.h>

namespace metalhost {

// Reserves so many stacks, each with pages below it that trap: a kernel whose local arrays are too
// large is found, not run over its neighbor.
void map_stacks(uint32_t count);

// The stack of thread `index`, made anew: the first switch to it calls `entry`, which must not return.
void* fresh_stack(uint32_t index, void (*entry)());

bool on_fiber_stack(const void* address);
bool on_guard_page(const void* address);

}  // namespace metalhost

// Saves the registers that a call must keep on the running stack, notes in *saved where, and goes on
// where `next` was saved.
extern "C" void metalhost_switch(void** saved, void* next);
