// Every load and store of a checked kernel, looked at before it happens.
#pragma once
#include <stdint.h>

#include "report.h"

namespace metalhost {

enum class Access { READ, WRITE, ATOMIC, ATOMIC_STORE };

// Bounds, initialisation and races. Does not return if the access would leave its array.
void check_access(const volatile void* address, uint64_t bytes, Access access, Caller caller);

}  // namespace metalhost
