// What each thread computes with.
#pragma once

#include <vector>

#include "aligned.h"
#include "thread_pool.h"

namespace tinyllm {

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
