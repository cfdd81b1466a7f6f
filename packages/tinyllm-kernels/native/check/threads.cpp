// A stress of the pool, for the thread sanitizer: callers at once, tasks of no part to many, and
// numbers that no atomic protects. `check.sh` builds and runs it.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../thread_pool.h"

namespace {

constexpr int kCallers = 3, kTasks = 1000, kMostParts = 40;

// Tasks whose parts count themselves: each is done once, and the caller sees it when `run` returns.
int failures_of_caller(int caller) {
  int failures = 0;
  for (int task = 0; task < kTasks; ++task) {
    std::vector<int> done((task * 7 + caller) % kMostParts);
    tinyllm::ThreadPool::shared().run(static_cast<int64_t>(done.size()),
                                      [&](int64_t part, int) { ++done[part]; });
    for (int count : done) failures += count != 1;
  }
  return failures;
}

}  // namespace

int main() {
  std::atomic<int> failures = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&failures, caller] { failures += failures_of_caller(caller); });
  }
  for (std::thread& caller : callers) caller.join();
  std::printf("threads: checked, %d failures\n", failures.load());
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
