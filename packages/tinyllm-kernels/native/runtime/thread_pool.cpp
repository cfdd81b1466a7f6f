#include "runtime/thread_pool.h"

#include <pthread.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/cores.h"
#include "runtime/float_mode.h"

namespace tinyllm {
namespace {

// A worker polls this often for the next task before it sleeps. That takes some hundred
// microseconds (200 on Zen 5), by the length of the processor's pause: longer than the gap between
// two layers, and negligible between two requests.
constexpr int kSpins = 8000;

// The units of the fields of `gate_`. Task numbers wrap around after 2^20 tasks. A worker that has
// slept that long may miss one task, which the other threads then compute.
constexpr uint32_t kInside = 1, kOpen = 1 << 11, kTask = 1 << 12;

uint32_t workers_inside(uint32_t gate) { return gate & (kOpen - 1); }
uint32_t task_number(uint32_t gate) { return gate & ~(kTask - 1); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// The pool is never deleted, because MLX's stream may run a task while the process exits. A child
// process after fork has no workers: it leaves the old pool as it is, because its threads cannot be
// joined.
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
  return usable_cores();
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

ThreadPool::ThreadPool(int threads) : states_(threads) {
  workers_.reserve(threads - 1);
  // A limit on processes, such as the one of a container, may leave fewer threads. An exception
  // here would destroy running threads, which ends the process.
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
}

void ThreadPool::run(int64_t parts, const std::function<void(int64_t, int)>& work,
                     const std::vector<PrefetchList>* prefetch) {
  const DefaultFloatMode mode;
  std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock.owns_lock() || workers_.empty() || parts < 2) {
    for (int64_t part = 0; part < parts; ++part) work(part, 0);
    return;
  }
  work_ = &work;
  const int64_t count = threads();
  move_workers_off_callers_core();
  for (int64_t i = 0; i < count; ++i) {
    states_[i].next = first_part(parts, i);
    states_[i].end = first_part(parts, i + 1);
    if (!prefetch) continue;
    states_[i].prefetch = i < std::ssize(*prefetch) ? (*prefetch)[i] : PrefetchList();
  }
  gate_.store(task_number(gate_.load(std::memory_order_relaxed)) + (kTask | kOpen),
              std::memory_order_release);
  gate_.notify_all();
  compute_parts(0);
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

void ThreadPool::worker_loop(int thread) {
  const DefaultFloatMode mode;
  uint32_t task = 0;
  Prefetcher prefetcher;
  for (;;) {
    states_[thread].core.store(sched_getcpu(), std::memory_order_relaxed);
    if (!enter(task, prefetcher)) continue;
    compute_parts(thread);
    prefetcher = Prefetcher(states_[thread].prefetch);
    leave();
  }
}

// Waits for a task other than number `task` and sets `task` to its number. Returns false if the
// task has already closed.
bool ThreadPool::enter(uint32_t& task, Prefetcher& prefetcher) {
  uint32_t gate = gate_.load(std::memory_order_acquire);
  for (int spins = 0; task_number(gate) == task; gate = gate_.load(std::memory_order_acquire)) {
    if (prefetcher.step()) continue;
    if (++spins < kSpins) {
      pause();
    } else {
      gate_.wait(gate);
    }
  }
  do {
    task = task_number(gate);
    if (!(gate & kOpen)) return false;
  } while (!gate_.compare_exchange_weak(gate, gate + kInside, std::memory_order_acquire));
  return true;
}

void ThreadPool::leave() {
  const uint32_t gate = gate_.fetch_sub(kInside, std::memory_order_release) - kInside;
  if (!(gate & kOpen) && !workers_inside(gate)) gate_.notify_all();
}

// Moves a worker that was last seen on the caller's core to another core. The worker would wait for
// the caller, and the scheduler takes milliseconds to notice an idle core: the time of many
// products. The worker's affinity mask is restored at once.
//
// Another thread or process may change affinity masks meanwhile. So the mask to restore is that of
// the caller, which the pool never changes, and it is read again until it is stable. `taskset -a`
// changes threads in the order of their creation: the caller before the workers. A worker with a
// mask of its own is left alone.
void ThreadPool::move_workers_off_callers_core() {
  const int core = sched_getcpu();
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (core < 0 || states_[i + 1].core.load(std::memory_order_relaxed) != core) continue;
    const pthread_t worker = workers_[i].native_handle();
    cpu_set_t allowed, of_worker;
    if (pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed) != 0) continue;
    if (pthread_getaffinity_np(worker, sizeof of_worker, &of_worker) != 0) continue;
    if (!CPU_EQUAL(&allowed, &of_worker)) continue;
    cpu_set_t others = allowed;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) continue;
    pthread_setaffinity_np(worker, sizeof others, &others);
    cpu_set_t restored;
    do {
      restored = allowed;
      pthread_setaffinity_np(worker, sizeof restored, &restored);
      pthread_getaffinity_np(pthread_self(), sizeof allowed, &allowed);
    } while (!CPU_EQUAL(&allowed, &restored));
    states_[i + 1].core.store(-1, std::memory_order_relaxed);
  }
}

void ThreadPool::compute_parts(int thread) {
  const int count = threads();
  try {
    for (int i = 0; i < count; ++i) {
      ThreadState& state = states_[(thread + i) % count];
      for (int64_t part; (part = state.next.fetch_add(1, std::memory_order_relaxed)) < state.end;) {
        (*work_)(part, thread);
      }
    }
  } catch (...) {
    record_failure();
  }
}

// Stores the current exception if it is the first one, and skips all parts that have not begun.
void ThreadPool::record_failure() noexcept {
  if (!failed_.test_and_set(std::memory_order_relaxed)) failure_ = std::current_exception();
  for (ThreadState& state : states_) state.next.store(state.end, std::memory_order_relaxed);
}

}  // namespace tinyllm
