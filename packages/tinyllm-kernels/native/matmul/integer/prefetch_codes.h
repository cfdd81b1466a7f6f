// Prefetching of codes, scales and biases by integer kernels.
//
// Hardware prefetchers alone are too slow: they stop at the end of a page, and the rows of x, which
// are read at the same time, keep them busy.
#pragma once

#include "isa/vectors.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_TIER {

// Prefetches what follows the addresses that are read now.
struct OneStepPrefetch {
  static constexpr int kWordsOfLine = 64 / sizeof(Words);
  template <typename T>
  static constexpr int kScalesOfLine = 64 / (W * sizeof(T));

  static void codes(const void* at) { prefetch<3>(at, kSingleCodes); }
  static void scales(const void*) {}

 protected:
  // Level 3 is the first-level cache, level 2 the second-level cache.
  template <int Level>
  static void prefetch(const void* at, int distance) {
    __builtin_prefetch(static_cast<const char*>(at) + distance, 0, Level);
  }
};

struct TwoStepPrefetch : OneStepPrefetch {
  static void codes(const void* at) {
    prefetch<2>(at, kFarCodes);
    prefetch<3>(at, kNearCodes);
  }
  static void scales(const void* at) { prefetch<3>(at, kScales); }
};

}  // namespace tinyllm::TINYLLM_TIER
