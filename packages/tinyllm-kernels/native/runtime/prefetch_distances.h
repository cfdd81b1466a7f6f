// Prefetch distances of decode kernels, which read most of their memory once, in bytes. Processors
// differ: docs/kernels/threads.md has a table, and names the pages with the measurements.
#pragma once

#include <cstdint>

namespace tinyllm {

// The hardware prefetchers stop at the end of a page of 4 KB, and so does this distance.
inline constexpr int kSingleCodes = 4096;

inline constexpr int kScales = 512;

// Distances of two prefetches: `far` to the second-level cache, `near` to the first-level cache. Zero
// if this machine has one prefetch or none.
struct PrefetchDistances {
  int64_t far, near;
};

PrefetchDistances code_distances();
PrefetchDistances row_distances();

}  // namespace tinyllm
