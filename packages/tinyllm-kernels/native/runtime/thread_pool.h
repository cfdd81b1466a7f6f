// A few threads that share out the parts of one task, and sleep between tasks.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/prefetch.h"

namespace tinyllm {

// How many threads this process may use: TINYLLM_NUM_THREADS if set, otherwise the cores that its
// affinity mask and its cgroup leave it. Throws std::invalid_argument if the variable is no number.
int thread_count();

class ThreadPool {
 public:
  // The pool of the process, started at the first use, and anew in a child after fork.
  static ThreadPool& shared();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls `work(part, thread)` once for each part in 0..parts-1, from any of the threads, the caller
  // among them, and returns when all are done. If another caller has the pool, this one works alone.
  // Each thread begins with a run of neighboring parts of its own, so that it reads memory from one
  // end to the other, and helps out with the runs of others after that. A worker whose core the
  // system has given to somebody else is not waited for, unless that was in the middle of a part.
  // `upcoming` has what each thread will read first in a task after this one: workers ask memory for
  // it while they wait. Without it that is what they were told last.
  // If a part throws, parts that have not begun are left out. The first exception is thrown again to
  // the caller after all threads have left the task.
  void run(int64_t parts, const std::function<void(int64_t part, int thread)>& work,
           const std::vector<Upcoming>* upcoming = nullptr);

  // The first of the parts with which a thread begins; that of the thread after the last is `parts`.
  int64_t first_part(int64_t parts, int64_t thread) const { return parts * thread / threads(); }

 private:
  explicit ThreadPool(int threads);
  void serve(int thread);
  bool enter(uint32_t& round, ReadAhead& ahead);
  void leave();
  void take_parts(int thread);
  void fail() noexcept;
  void part_from_caller();

  std::mutex busy_;
  const std::function<void(int64_t, int)>* work_ = nullptr;
  std::atomic_flag failed_;     // set by the first part that throws
  std::exception_ptr failure_;  // its exception, read by the caller after all threads have left

  // What is left of a thread's own parts, and the core on which it was last seen; on a cache line of
  // its own.
  struct alignas(64) Run {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
    std::atomic<int> core{-1};
    Upcoming upcoming;
  };
  std::vector<Run> runs_;
  // The number of the task, whether workers may still enter it, and how many are in it.
  alignas(64) std::atomic<uint32_t> gate_{0};
  std::vector<std::thread> workers_;
};

}  // namespace tinyllm
