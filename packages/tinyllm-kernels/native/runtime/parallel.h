// Many small equal pieces of work, in chunks that are worth a thread.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/aligned.h"
#include "runtime/thread_pool.h"

namespace tinyllm {

// Numbers that a thread should have to do with, at least.
inline constexpr int64_t kNumbersAThread = 1 << 14;

// Calls `work(first, last)` over 0..count-1 on all threads; each of these stands for `numbers`.
template <typename Work>
void in_chunks(int64_t count, int64_t numbers, Work work) {
  const int64_t chunk = std::max<int64_t>(kNumbersAThread / std::max<int64_t>(numbers, 1), 1);
  ThreadPool::shared().run((count + chunk - 1) / chunk, [&](int64_t part, int) {
    work(part * chunk, std::min(count, (part + 1) * chunk));
  });
}

// --- scratch.h
// What each thread computes with.

// So many floats for each thread, made by the thread that first needs them.
class Scratch {
 public:
  explicit Scratch(int64_t floats) : floats_(floats), of_thread_(ThreadPool::shared().threads()) {}

  float* operator[](int thread) {
    if (!of_thread_[thread]) of_thread_[thread] = aligned<float>(floats_);
    return of_thread_[thread].get();
  }

 private:
  int64_t floats_;
  std::vector<Aligned<float>> of_thread_;
};

}  // namespace tinyllm
