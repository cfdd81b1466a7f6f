// The threads of the group that runs, and where they wait for each other.
//
// Each Metal thread is a fiber. It runs until it reaches a barrier or a simd operation, then another
// one does. When all that must come have come, they become ready again. When nobody is ready and
// some still wait, the kernel has diverged: on a GPU it would hang, or go on with wrong numbers.
#pragma once
#include <stdint.h>

#include "access_set.h"
#include "schedule.h"

namespace metalhost {

// Runs group number `group` of the grid to its end.
void run_group(uint32_t group, Schedule& schedule);

// The thread that runs now; null outside of the kernel.
const Coordinates* running_thread();
uint32_t running_group();

// The running thread, in the epoch that counts for threadgroup memory or for device memory.
Accessor accessor_of_threadgroup_memory(uint32_t pc);
Accessor accessor_of_device_memory(uint32_t pc);

}  // namespace metalhost
