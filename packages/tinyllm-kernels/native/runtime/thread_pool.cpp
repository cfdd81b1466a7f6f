#include "runtime/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace tinyllm {
namespace {

// A worker looks this often for the next task before it sleeps: some 100 microseconds, longer than
// the gap between two layers, and nothing beside the time between two requests.
constexpr int kSpins = 8000;

// What `gate_` consists of. That the numbers of tasks come round again does not matter: a worker that
// has slept as long as that misses a task, and may.
constexpr uint32_t kInside = 1, kOpen = 1 << 11, kRound = 1 << 12;

uint32_t workers_inside(uint32_t gate) { return gate & (kOpen - 1); }
uint32_t round_of(uint32_t gate) { return gate & ~(kRound - 1); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

int cores_of_affinity() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
#endif
  return std::max<int>(std::thread::hardware_concurrency(), 1);
}

int current_core() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// The quota of cgroup v2, in whole cores, or a large number where there is none.
int cores_of_cgroup() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::ceil(std::atof(quota.c_str()) / period)));
}

// Never deleted: at the end of the process MLX's stream may still be in the middle of a task. In a
// child after fork the workers are gone, and the old pool is left as it is: it cannot be joined.
ThreadPool* pool = nullptr;
std::once_flag registered;
std::mutex starting;

}  // namespace

int thread_count() {
  if (const char* text = std::getenv("TINYLLM_NUM_THREADS"); text && *text) {
    char* end = nullptr;
    long count = std::strtol(text, &end, 10);
    if (*end || count < 1 || count > 1024) {
      throw std::invalid_argument(
          std::string("TINYLLM_NUM_THREADS: expected a number from 1 to 1024, got ") + text);
    }
    return static_cast<int>(count);
  }
  return std::min(cores_of_affinity(), cores_of_cgroup());
}

ThreadPool& ThreadPool::shared() {
  std::lock_guard lock(starting);
  std::call_once(registered, [] {
    pthread_atfork([] { starting.lock(); }, [] { starting.unlock(); },
                   [] {
                     starting.unlock();
                     pool = nullptr;
                   });
  });
  if (!pool) pool = new ThreadPool(thread_count());
  return *pool;
}

ThreadPool::ThreadPool(int threads) : runs_(threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
}

void ThreadPool::run(int64_t parts, const std::function<void(int64_t, int)>& work,
                     const std::vector<Upcoming>* upcoming) {
  std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock.owns_lock() || workers_.empty() || parts < 2) {
    for (int64_t part = 0; part < parts; ++part) work(part, 0);
    return;
  }
  work_ = &work;
  const int64_t count = threads();
  part_from_caller();
  for (int64_t i = 0; i < count; ++i) {
    runs_[i].next = first_part(parts, i);
    runs_[i].end = first_part(parts, i + 1);
    if (!upcoming) continue;
    runs_[i].upcoming = i < std::ssize(*upcoming) ? (*upcoming)[i] : Upcoming();
  }
  gate_.store(round_of(gate_.load(std::memory_order_relaxed)) + (kRound | kOpen),
              std::memory_order_release);
  gate_.notify_all();
  take_parts(0);
  uint32_t gate = gate_.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
  for (int spins = 0; workers_inside(gate); gate = gate_.load(std::memory_order_acquire)) {
    if (++spins < kSpins) {
      pause();
    } else {
      gate_.wait(gate);
    }
  }
  if (failure_) {
    failed_.clear(std::memory_order_relaxed);
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void ThreadPool::serve(int thread) {
  uint32_t round = 0;
  ReadAhead ahead;
  for (;;) {
    runs_[thread].core.store(current_core(), std::memory_order_relaxed);
    if (!enter(round, ahead)) continue;
    take_parts(thread);
    ahead = ReadAhead(runs_[thread].upcoming);
    leave();
  }
}

// Waits for a task other than `round`, which becomes its number. False if it was over by then.
bool ThreadPool::enter(uint32_t& round, ReadAhead& ahead) {
  uint32_t gate = gate_.load(std::memory_order_acquire);
  for (int spins = 0; round_of(gate) == round; gate = gate_.load(std::memory_order_acquire)) {
    if (ahead.step()) continue;
    if (++spins < kSpins) {
      pause();
    } else {
      gate_.wait(gate);
    }
  }
  do {
    round = round_of(gate);
    if (!(gate & kOpen)) return false;
  } while (!gate_.compare_exchange_weak(gate, gate + kInside, std::memory_order_acquire));
  return true;
}

void ThreadPool::leave() {
  const uint32_t gate = gate_.fetch_sub(kInside, std::memory_order_release) - kInside;
  if (!(gate & kOpen) && !workers_inside(gate)) gate_.notify_all();
}

// Sends a worker away that was last seen on the caller's core: it waits for that core now, and the
// system takes milliseconds to notice that another one is idle, which is many products. Where a
// worker may run is left as it was.
void ThreadPool::part_from_caller() {
#if defined(__linux__)
  const int core = current_core();
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (core < 0 || runs_[i + 1].core.load(std::memory_order_relaxed) != core) continue;
    const pthread_t worker = workers_[i].native_handle();
    cpu_set_t allowed;
    if (pthread_getaffinity_np(worker, sizeof allowed, &allowed) != 0) continue;
    cpu_set_t others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) continue;
    pthread_setaffinity_np(worker, sizeof others, &others);
    pthread_setaffinity_np(worker, sizeof allowed, &allowed);
    runs_[i + 1].core.store(-1, std::memory_order_relaxed);
  }
#endif
}

void ThreadPool::take_parts(int thread) {
  const int count = threads();
  try {
    for (int i = 0; i < count; ++i) {
      Run& run = runs_[(thread + i) % count];
      for (int64_t part; (part = run.next.fetch_add(1, std::memory_order_relaxed)) < run.end;) {
        (*work_)(part, thread);
      }
    }
  } catch (...) {
    fail();
  }
}

// Keeps the exception in flight if it is the first one, and takes the remaining parts away.
void ThreadPool::fail() noexcept {
  if (!failed_.test_and_set(std::memory_order_relaxed)) failure_ = std::current_exception();
  for (Run& run : runs_) run.next.store(run.end, std::memory_order_relaxed);
}

}  // namespace tinyllm
