// Interface between a compiled kernel and the runtime that executes it.
//
// The headers of Metal's library in ../msl call these functions. The runtime calls `kernel_entry`,
// which the translation of every kernel defines.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <source_location>

namespace metalhost {

// Values of a thread's attributes: [[thread_position_in_grid]] and so on.
struct Coordinates {
  uint32_t grid[3];                     // [[threads_per_grid]]
  uint32_t groups[3];                   // [[threadgroups_per_grid]]
  uint32_t group[3];                    // [[threadgroup_position_in_grid]]
  uint32_t group_size[3];               // [[threads_per_threadgroup]], smaller at the grid's edge
  uint32_t dispatched_group_size[3];    // [[dispatch_threads_per_threadgroup]], as requested
  uint32_t in_grid[3];                  // [[thread_position_in_grid]]
  uint32_t in_group[3];                 // [[thread_position_in_threadgroup]]
  uint32_t index;                       // [[thread_index_in_threadgroup]]
  uint32_t lane;                        // [[thread_index_in_simdgroup]]
  uint32_t simdgroup;                   // [[simdgroup_index_in_threadgroup]]
  uint32_t simdgroups;                  // [[simdgroups_per_threadgroup]]
  uint32_t dispatched_simdgroups;       // [[dispatch_simdgroups_per_threadgroup]]
};

// Location in the kernel's text. `Site::here()` as a default argument is the location of the call.
// The column tells two calls in a line apart, as in `odd ? simd_sum(a) : simd_sum(b)`.
struct Site {
  const char* file;
  int line, column;
  static constexpr Site here(std::source_location at = std::source_location::current()) {
    return {at.file_name(), int(at.line()), int(at.column())};
  }
  bool operator==(const Site&) const = default;
  bool is_before(const Site& other) const {
    return line < other.line || (line == other.line && column < other.column);
  }
};

constexpr uint32_t LANES = 32;
constexpr uint32_t ALL_LANES = 0xffffffffu;
constexpr uint32_t SLOT_BYTES = 64;  // maximum size of a value that a lane can exchange

// Values of all lanes of a simdgroup. The value of lane i begins at slots + i * SLOT_BYTES.
struct Exchange {
  const unsigned char* slots;
  uint32_t active;  // bit i is set if lane i takes part
  uint32_t lane;    // lane of the caller
};

// Passes a value of `bytes` bytes to the other lanes. Returns when all lanes have done so.
Exchange exchange(const void* value, uint32_t bytes, const char* operation, Site site);

// `flags` are the flags of metal::mem_flags.
void threadgroup_barrier(uint32_t flags, Site site);
void simdgroup_barrier(uint32_t flags, Site site);

// Returns the memory of threadgroup variable `id`, which all threads of a group share.
void* threadgroup_variable(int id, uint32_t bytes, uint32_t alignment, const char* name, Site site);

enum class AtomicAccess { LOAD, STORE, UPDATE };

// Called before an atomic operation accesses memory.
void atomic_access(const volatile void* address, uint32_t bytes, AtomicAccess access);

// Returns true if a weak compare-and-exchange fails although the values are equal. This happens at
// random, unless threads run in their natural order.
bool weak_exchange_fails();

// Called when a kernel accesses a component that a vector does not have.
void vector_index_out_of_bounds();

// Called when an operation reads the value of a lane that takes no part in it.
void inactive_lane(const char* operation, Site site);

void kernel_entry(void* const* buffers, const Coordinates& at);

}  // namespace metalhost
