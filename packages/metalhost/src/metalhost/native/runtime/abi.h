// What a kernel, compiled for the host, and the program that runs it know of each other.
//
// The shim headers in ../msl call these functions; the runtime calls `kernel_entry`, which the
// generated text of every kernel defines.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <source_location>

namespace metalhost {

// Where a Metal thread stands: the values of the attributes [[thread_position_in_grid]] and so on.
struct Coordinates {
  uint32_t grid[3];                     // [[threads_per_grid]]
  uint32_t groups[3];                   // [[threadgroups_per_grid]]
  uint32_t group[3];                    // [[threadgroup_position_in_grid]]
  uint32_t group_size[3];               // [[threads_per_threadgroup]]: smaller at the grid's edge
  uint32_t dispatched_group_size[3];    // [[dispatch_threads_per_threadgroup]]: as asked for
  uint32_t in_grid[3];                  // [[thread_position_in_grid]]
  uint32_t in_group[3];                 // [[thread_position_in_threadgroup]]
  uint32_t index;                       // [[thread_index_in_threadgroup]]
  uint32_t lane;                        // [[thread_index_in_simdgroup]]
  uint32_t simdgroup;                   // [[simdgroup_index_in_threadgroup]]
  uint32_t simdgroups;                  // [[simdgroups_per_threadgroup]]
  uint32_t dispatched_simdgroups;       // [[dispatch_simdgroups_per_threadgroup]]
};

// A place in the kernel's text. As a default argument, `Site::here()` is the place of the call. Two
// calls in a line are two places, as in `odd ? simd_sum(a) : simd_sum(b)`.
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
constexpr uint32_t SLOT_BYTES = 64;  // the most that one lane hands to the others at once

// What the lanes of a simdgroup handed in: lane i's bytes begin at slots + i * SLOT_BYTES.
struct Exchange {
  const unsigned char* slots;
  uint32_t active;  // bit i: lane i takes part
  uint32_t lane;    // the caller's own
};

// Hands `bytes` bytes to the other lanes, and returns when all of them have done so.
Exchange exchange(const void* value, uint32_t bytes, const char* operation, Site site);

// `flags` are those of metal::mem_flags.
void threadgroup_barrier(uint32_t flags, Site site);
void simdgroup_barrier(uint32_t flags, Site site);

// The memory of the threadgroup variable `id`: the same for all threads of a group.
void* threadgroup_variable(int id, uint32_t bytes, uint32_t alignment, const char* name, Site site);

// Told before an atomic operation touches memory. Only a store does not care what was there.
void atomic_access(const volatile void* address, uint32_t bytes, bool reads);

// Told when a lane asks for the value of one that takes no part.
void inactive_lane(const char* operation, Site site);

void kernel_entry(void* const* buffers, const Coordinates& at);

}  // namespace metalhost
