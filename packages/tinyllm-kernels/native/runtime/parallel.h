// A parallel loop over many small items, and scratch memory for each thread.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ceil_div.h"
#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace tinyllm {

// The least work, in numbers read, for which waking a thread pays.
inline constexpr int64_t kMinNumbersPerChunk = 1 << 14;

// Calls `work(first, last)`, or `work(first, last, thread)`, on all threads for ranges that together
// cover 0..count-1. `numbers` is the size of one item. Small items are grouped, so that waking a
// thread pays.
template <typename Work>
void parallel_for(int64_t count, int64_t numbers, Work work) {
  const int64_t chunk = std::max<int64_t>(kMinNumbersPerChunk / std::max<int64_t>(numbers, 1), 1);
  ThreadPool::shared().run(ceil_div(count, chunk), [&](int64_t part, int thread) {
    const int64_t first = part * chunk, last = std::min(count, first + chunk);
    if constexpr (std::is_invocable_v<Work, int64_t, int64_t, int>) {
      work(first, last, thread);
    } else {
      work(first, last);
    }
  });
}

// An array of `floats` numbers for each thread of the pool.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : of_thread_(ThreadPool::shared().threads()) {
    for (Aligned<float>& array : of_thread_) array = aligned<float>(floats);
  }

  float* operator[](int thread) { return of_thread_[thread].get(); }

 private:
  std::vector<Aligned<float>> of_thread_;
};

}  // namespace tinyllm
