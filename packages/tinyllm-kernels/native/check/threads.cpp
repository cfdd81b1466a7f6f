// A stress of the pool, for the thread sanitizer: callers at once, tasks of no part to many, parts
// that throw, and numbers that no atomic protects. `check.sh` builds and runs it.
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

// Tasks in which one part, or every part, throws: `run` throws one of these exceptions, no part is
// still being computed by then, and the next task is computed as a whole.
int failures_of_exceptions() {
  int failures = 0;
  for (int task = 0; task < kTasks; ++task) {
    const int parts = 1 + task % kMostParts, bad = task % 2 ? -1 : (task * 5) % parts;
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
    std::vector<int> done(kMostParts);
    ThreadPool::shared().run(kMostParts, [&](int64_t part, int) { ++done[part]; });
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
