// Checks during execution: of every load and store of a checked kernel, and of signals.
#pragma once
#include <stdint.h>

#include "host/report.h"

namespace metalhost {

enum class Access { READ, WRITE, ATOMIC_LOAD, ATOMIC_STORE, ATOMIC_UPDATE };

// Checks an access before it happens: bounds, initialization and races. An access out of bounds
// ends the program.
void check_access(const volatile void* address, uint64_t bytes, Access access, Caller caller);

// Installs the handlers that report guard page hits, traps and the time limit, and end the program.
void install_signal_handlers();

}  // namespace metalhost
