// Prefetching of codes by integer kernels.
//
// Hardware prefetchers alone are too slow: they stop at the end of a page, and the rows of x, which
// are read at the same time, keep them busy.
#pragma once

#include "isa/vectors.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_ISA {

// Prefetches what follows the addresses that are read now.
struct OneStepPrefetch {
  static constexpr int kWordsOfLine = 64 / sizeof(Words);

  void codes(const void* at) const { prefetch<3>(at, kSingleCodes); }

 protected:
  // Level 3 is the first-level cache, level 2 the second-level cache.
  template <int Level>
  static void prefetch(const void* at, int64_t distance) {
    __builtin_prefetch(static_cast<const char*>(at) + distance, 0, Level);
  }
};

struct TwoStepPrefetch : OneStepPrefetch {
  void codes(const void* at) const {
    prefetch<2>(at, distances.far);
    prefetch<3>(at, distances.near);
  }

  PrefetchDistances distances;
};

}  // namespace tinyllm::TINYLLM_ISA
