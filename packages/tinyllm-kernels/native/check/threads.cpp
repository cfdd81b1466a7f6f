// A stress of the pool, for the thread sanitizer: callers at once, tasks of no part to many, and
// numbers that no atomic protects. `check.sh` builds and runs it.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../product_order.h"
#include "../thread_pool.h"

namespace {

using namespace tinyllm;

constexpr int kCallers = 3, kTasks = 1000, kMostParts = 40;

// Tasks whose parts count themselves: each is done once, and the caller sees it when `run` returns.
int failures_of_caller(int caller) {
  int failures = 0;
  for (int task = 0; task < kTasks; ++task) {
    std::vector<int> done((task * 7 + caller) % kMostParts);
    // Of every third task threads are told what they will read after it, until it is gone.
    std::vector<Upcoming> upcoming(task % 3 ? 0 : kCallers);
    for (Upcoming& each : upcoming) each.add(done.data(), 1 << 14);
    ThreadPool::shared().run(static_cast<int64_t>(done.size()),
                             [&](int64_t part, int) { ++done[part]; }, &upcoming);
    for (int count : done) failures += count != 1;
  }
  return failures;
}

// What follows is known once it has been so twice; of a product that is followed by now this, now
// that, nothing is.
int failures_of_order() {
  const int weights[3] = {};
  const auto known = [&](ProductOrder& order, int product) {
    FirstReads reads(1);
    reads[0].add(&weights[product], sizeof weights[product]);
    const FirstReads& next = order.begin(&weights[product], 1, [&] { return reads; });
    return next.empty() ? nullptr : next[0][0].begin;
  };
  const auto at = [&](int product) { return reinterpret_cast<const char*>(&weights[product]); };
  ProductOrder steady, changing;
  int failures = 0;
  for (int round = 0; round < 6; ++round) {
    for (int product = 0; product < 3; ++product) {
      failures += known(steady, product) != (round > 1 ? at((product + 1) % 3) : nullptr);
    }
    failures += known(changing, 0) != nullptr;
    failures += known(changing, round % 2 + 1) != (round > 3 ? at(0) : nullptr);
  }
  return failures;
}

}  // namespace

int main() {
  std::atomic<int> failures = failures_of_order();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&failures, caller] { failures += failures_of_caller(caller); });
  }
  for (std::thread& caller : callers) caller.join();
  std::printf("threads: checked, %d failures\n", failures.load());
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
