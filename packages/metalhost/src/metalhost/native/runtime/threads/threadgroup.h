// Threads of the running group, and their synchronization at barriers and simd operations.
//
// Each Metal thread is a fiber. It runs until it reaches a barrier or a simd operation, and then
// another thread runs. When all threads that take part have arrived, they become ready again. If no
// thread is ready and some still wait, the kernel has diverged. A GPU would hang, or continue with
// wrong numbers.
#pragma once
#include <stdint.h>

#include "fibers/schedule.h"
#include "memory/shadow.h"

namespace metalhost {

// Runs all threads of group `group` until they return.
void run_group(uint32_t group, Schedule& schedule);

// Returns the coordinates of the running thread, or null outside of the kernel.
const Coordinates* running_thread();
uint32_t running_group();

// Return the running thread with its epochs for threadgroup memory or for device memory. A barrier
// advances the epochs of the kinds of memory in its flags.
Accessor threadgroup_memory_accessor(uint32_t pc);
Accessor device_memory_accessor(uint32_t pc);

}  // namespace metalhost
