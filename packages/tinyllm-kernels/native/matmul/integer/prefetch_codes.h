// Prefetching of codes by integer kernels.
//
// Hardware prefetchers alone are too slow: they stop at the end of a page, and the rows of x, which
// are read at the same time, keep them busy.
#pragma once

#include "isa/vectors.h"
#include "runtime/prefetch_distances.h"

namespace tinyllm::TINYLLM_ISA {

// Prefetches what is read `distance` bytes later. Level 3 is the first-level cache, level 2 the
// second-level cache.
template <int Level>
inline void prefetch_ahead(const void* at, int64_t distance) {
  __builtin_prefetch(static_cast<const char*>(at) + distance, 0, Level);
}

struct OneStepPrefetch {
  static constexpr int kWordsOfLine = 64 / sizeof(Words);

  void codes(const void* at) const { prefetch_ahead<3>(at, distance); }

  int64_t distance = single_code_distance();
};

struct TwoStepPrefetch {
  static constexpr int kWordsOfLine = OneStepPrefetch::kWordsOfLine;

  void codes(const void* at) const {
    prefetch_ahead<2>(at, distances.far);
    prefetch_ahead<3>(at, distances.near);
  }

  PrefetchDistances distances = code_distances();
};

// The prefetches of a task. With eight rows of x arithmetic is the limit, and a second prefetch
// costs more than it saves. Some machines are faster with one for fewer rows, too.
struct CodePrefetch {
  template <int M>
  bool has_two_steps() const {
    return M < 8 && two_steps.distances.far;
  }

  OneStepPrefetch one_step;
  TwoStepPrefetch two_steps;
};

}  // namespace tinyllm::TINYLLM_ISA
