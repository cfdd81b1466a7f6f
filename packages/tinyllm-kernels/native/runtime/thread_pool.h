// A pool of threads that compute the parts of one task at a time, and sleep between tasks.
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

// The number of threads that this process may use: TINYLLM_NUM_THREADS if it is set, else the
// number of cores (runtime/cores.h). Throws std::invalid_argument if the variable is not a number
// from 1 to 1024. It reads files of the system, so a task asks its pool instead.
int thread_count();

class ThreadPool {
 public:
  // The pool of the process. It starts at the first use, and again in a child process after fork.
  static ThreadPool& shared();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // All threads, the caller of `run` included.
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls `work(part, thread)` once for each part in 0..parts-1 and returns when all calls are
  // done. The caller computes parts too. If another caller is using the pool, this caller computes
  // all parts alone, as thread 0.
  //
  // Each thread starts with a contiguous range of parts, so that it reads memory sequentially. Then
  // it helps with the ranges of other threads. `run` does not wait for a worker that the system has
  // not scheduled, unless the worker is in the middle of a part.
  //
  // `prefetch` lists what each thread reads first in the task after this one. Workers prefetch that
  // memory while they wait. Without the argument they use the lists of the call before.
  //
  // Parts are computed in the default floating-point mode: see runtime/float_mode.h.
  //
  // If a part throws, parts that have not begun are skipped. The first exception is rethrown to the
  // caller after all threads have left the task.
  void run(int64_t parts, const std::function<void(int64_t part, int thread)>& work,
           const std::vector<PrefetchList>* prefetch = nullptr);

  // The first part of a thread's own range. The range of the last thread ends at `parts`.
  int64_t first_part(int64_t parts, int64_t thread) const { return parts * thread / threads(); }

 private:
  explicit ThreadPool(int threads);
  void worker_loop(int thread);
  bool enter(uint32_t& task, Prefetcher& prefetcher);
  void leave();
  void compute_parts(int thread);
  void record_failure() noexcept;
  void move_workers_off_callers_core();

  std::mutex busy_;  // held by the caller whose task runs
  const std::function<void(int64_t, int)>* work_ = nullptr;
  std::atomic_flag failed_;     // set by the first part that throws
  std::exception_ptr failure_;  // its exception, read by the caller after all threads have left

  // One for each thread, each on a cache line of its own.
  struct alignas(64) ThreadState {
    std::atomic<int64_t> next{0};  // the next part of the thread's own range
    int64_t end = 0;
    std::atomic<int> core{-1};  // the core on which the thread was last seen
    PrefetchList prefetch;
  };
  std::vector<ThreadState> states_;
  // Three bit fields: the number of the task, a bit that lets workers enter it, and the number of
  // workers in it. One atomic word keeps the three consistent.
  alignas(64) std::atomic<uint32_t> gate_{0};
  std::vector<std::thread> workers_;
};

}  // namespace tinyllm
