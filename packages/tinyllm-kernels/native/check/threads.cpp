// A stress test of the thread pool under the thread sanitizer: concurrent callers, tasks of 0 to 39
// parts, parts that throw, results in plain memory, and affinity masks that change meanwhile. Forward
// passes with the portable kernels run on two threads at once, and with allocations that fail.
// `check.sh` builds and runs it.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check/checks.h"
#include "check/data/model.h"
#include "runtime/cores.h"
#include "runtime/product_order.h"
#include "runtime/thread_pool.h"

namespace tinyllm::portable {
extern const KernelTable kernels;
}

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

// Counts forward passes with wrong bits. Both threads compute at once, each its own arrays.
int failures_of_concurrent_passes() {
  std::atomic<int> failures = 0;
  check::Model models[] = {check::Model(Type::bfloat16), check::Model(Type::float32)};
  const auto compute = [&](check::Model& model) {
    return model.compute(portable::kernels, Phase::decode);
  };
  std::vector<std::thread> callers;
  for (check::Model& model : models) {
    callers.emplace_back([&failures, &model, expected = compute(model), &compute] {
      for (int pass = 0; pass < 20; ++pass) failures += compute(model) != expected;
    });
  }
  for (std::thread& caller : callers) caller.join();
  return failures;
}

// Sets the affinity mask of each thread of the process, in the order of creation, as `taskset -a`.
void set_affinity_of_process(const cpu_set_t& set) {
  std::vector<int> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.push_back(std::stoi(entry.path().filename()));
  }
  std::sort(threads.begin(), threads.end());
  for (int thread : threads) sched_setaffinity(thread, sizeof set, &set);
}

// Counts rounds after which a thread of the process has another mask than the one that was set while
// tasks ran.
int failures_of_affinity() {
  cpu_set_t all;
  if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return 0;
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t fewer = all;
  CPU_CLR(first, &fewer);
  int failures = 0;
  for (int round = 0; round < 60; ++round) {
    const cpu_set_t& set = round % 2 ? all : fewer;
    std::atomic<bool> done = false;
    // The caller is older than the workers, as the pool assumes.
    std::thread setter([&] {
      set_affinity_of_process(set);
      done = true;
    });
    for (int task = 0; task < 200 || !done; ++task) ThreadPool::shared().run(8, [](int64_t, int) {});
    setter.join();
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      cpu_set_t found;
      const int thread = std::stoi(entry.path().filename());
      if (sched_getaffinity(thread, sizeof found, &found) != 0) continue;  // it has ended
      failures += !CPU_EQUAL(&found, &set);
    }
  }
  set_affinity_of_process(all);
  return failures;
}

// Counts wrong numbers of cores, for two cores of two hardware threads each, a core of one, and a
// processor without a description.
int failures_of_cores() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("tinyllm-cores-" + std::to_string(getpid()));
  const char* siblings[] = {"0,2", "1,3", "0,2", "1,3", "4"};
  for (int cpu = 0; cpu < 5; ++cpu) {
    const fs::path topology = folder / ("cpu" + std::to_string(cpu)) / "topology";
    fs::create_directories(topology);
    std::ofstream(topology / "thread_siblings_list") << siblings[cpu] << "\n";
  }
  int failures = 0;
  failures += count_cores({0, 1, 2, 3, 4, 5}, folder) != 4;
  failures += count_cores({0, 2}, folder) != 1;
  failures += count_cores({2, 3}, folder) != 2;
  // A service in a slice with a quota of one and a half cores.
  const fs::path slice = folder / "sys/fs/cgroup/a.slice";
  fs::create_directories(slice / "b.service");
  fs::create_directories(folder / "proc/self");
  failures += cores_of_quotas(folder) < 1000;
  std::ofstream(folder / "proc/self/cgroup") << "3:cpu:/c\n0::/a.slice/b.service\n";
  std::ofstream(slice / "b.service/cpu.max") << "max 100000\n";
  failures += cores_of_quotas(folder) < 1000;
  std::ofstream(slice / "cpu.max") << "150000 100000\n";
  failures += cores_of_quotas(folder) != 2;
  fs::remove_all(folder);
  return failures;
}

// Returns 1 unless a child process computes with a pool of its own.
int failures_of_fork() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::vector<int> done(kMaxParts);
    ThreadPool::shared().run(kMaxParts, [&](int64_t part, int) { ++done[part]; });
    _exit(std::count(done.begin(), done.end(), 1) == kMaxParts ? 0 : 1);
  }
  int status = 1;
  return waitpid(child, &status, 0) != child || status != 0;
}

}  // namespace

int main() {
  std::atomic<int> failures = failures_of_order() + failures_of_exceptions();
  failures += failures_of_cores() + failures_of_fork() + failures_of_affinity();
  failures += failures_of_concurrent_passes();
  check::check_allocations(portable::kernels);
  failures += check::failures;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&failures, caller] { failures += failures_of_caller(caller); });
  }
  callers.emplace_back([&failures] { failures += failures_of_exceptions(); });
  for (std::thread& caller : callers) caller.join();
  std::printf("threads: checked, %d failures\n", failures.load());
  return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
