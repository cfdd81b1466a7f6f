// Prefetch distances of decode kernels, which read most of their memory once, in bytes. Processors
// differ: docs/kernels/threads.md has a table, and names the pages with the measurements.
#pragma once

#include <cstdint>

namespace tinyllm {

inline constexpr int kScaleDistance = 512;  // of scales and biases

// Distances of two prefetches: `far` to the second-level cache, `near` to the first-level cache.
// Both are zero where two do not pay: codes then have one prefetch, and rows none.
struct PrefetchDistances {
  int64_t far, near;
};

PrefetchDistances code_distances();
int64_t single_code_distance();  // of one prefetch
PrefetchDistances row_distances();

}  // namespace tinyllm
