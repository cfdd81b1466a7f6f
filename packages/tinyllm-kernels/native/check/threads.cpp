// A stress test of the thread pool under the thread sanitizer: concurrent callers, tasks of 0 to 39
// parts, parts that throw, and results in plain memory. `check.sh` builds and runs it.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/product_order.h"
#include "runtime/thread_pool.h"

namespace {

using namespace tinyllm;

constexpr int kCallers = 3, kTasks = 1000, kMaxParts = 40;

// Counts errors in tasks whose parts count themselves. Each part must run once, and the caller must
// see all counts when `run` returns.
int failures_of_caller(int caller) {
  int failures = 0;
  for (int task = 0; task < kTasks; ++task) {
    std::vector<int> done((task * 7 + caller) % kMaxParts);
    // Every third task lists memory to prefetch, which may be freed before it is prefetched.
    std::vector<PrefetchList> lists(task % 3 ? 0 : kCallers);
    for (PrefetchList& list : lists) list.add(done.data(), 1 << 14);
    ThreadPool::shared().run(static_cast<int64_t>(done.size()),
                             [&](int64_t part, int) { ++done[part]; }, &lists);
    for (int count : done) failures += count != 1;
  }
  return failures;
}

// Counts errors in tasks in which one part, or every part, throws. `run` must throw one of the
// exceptions after all parts have ended, and the next task must run completely.
int failures_of_exceptions() {
  int failures = 0;
  for (int task = 0; task < kTasks; ++task) {
    const int parts = 1 + task % kMaxParts, bad = task % 2 ? -1 : (task * 5) % parts;
    std::atomic<int> inside = 0;
    bool caught = false;
    try {
      ThreadPool::shared().run(parts, [&](int64_t part, int) {
        struct Inside {
          explicit Inside(std::atomic<int>& count) : count(count) { ++count; }
          ~Inside() { --count; }
          std::atomic<int>& count;
        } here(inside);
        if (bad < 0 || part == bad) throw std::runtime_error(std::to_string(part));
      });
    } catch (const std::runtime_error& error) {
      caught = bad < 0 || error.what() == std::to_string(bad);
    }
    failures += !caught || inside != 0;
    std::vector<int> done(kMaxParts);
    ThreadPool::shared().run(kMaxParts, [&](int64_t part, int) { ++done[part]; });
    for (int count : done) failures += count != 1;
  }
  return failures;
}

// Counts wrong predictions. A successor is predicted once it has followed twice in a row. A product
// with changing successors has no prediction.
int failures_of_order() {
  const int weights[3] = {};
  const auto predicted = [&](ProductOrder& order, int product) {
    PrefetchLists lists(1);
    lists[0].add(&weights[product], sizeof weights[product]);
    const PrefetchLists& next = order.begin(&weights[product], 1, [&] { return lists; });
    return next.empty() ? nullptr : next[0][0].begin;
  };
  const auto at = [&](int product) { return reinterpret_cast<const char*>(&weights[product]); };
  ProductOrder steady, changing;
  int failures = 0;
  for (int round = 0; round < 6; ++round) {
    for (int product = 0; product < 3; ++product) {
      failures += predicted(steady, product) != (round > 1 ? at((product + 1) % 3) : nullptr);
    }
    failures += predicted(changing, 0) != nullptr;
    failures += predicted(changing, round % 2 + 1) != (round > 3 ? at(0) : nullptr);
  }
  return failures;
}

}  // namespace

int main() {
  std::atomic<int> failures = failures_of_order() + failures_of_exceptions();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&failures, caller] { failures += failures_of_caller(caller); });
  }
  callers.emplace_back([&failures] { failures += failures_of_exceptions(); });
  for (std::thread& caller : callers) caller.join();
  std::printf("threads: checked, %d failures\n", failures.load());
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
