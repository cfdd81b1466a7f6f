// A forward pass in which one allocation fails.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "check/checks.h"
#include "check/data/model.h"
#include "runtime/thread_pool.h"

namespace {

// Allocations until one fails, on all threads. At 0 and below none fails.
std::atomic<int64_t> until_failure{0};

bool fails() {
  return until_failure.load(std::memory_order_relaxed) > 0 && until_failure.fetch_sub(1) == 1;
}

}  // namespace

// All allocations of the program go through these functions: `check.sh` links with
// --wrap=aligned_alloc.
extern "C" void* __real_aligned_alloc(size_t alignment, size_t size);
extern "C" void* __wrap_aligned_alloc(size_t alignment, size_t size) {
  return fails() ? nullptr : __real_aligned_alloc(alignment, size);
}

// Its callers go on without memory: std::stable_sort does.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return std::malloc(size ? size : 1);
}
void* operator new(size_t size) {
  void* memory = fails() ? nullptr : operator new(size, std::nothrow);
  if (!memory) throw std::bad_alloc();
  return memory;
}
// Not inlined: GCC would see `free` beside `operator new`, and warn.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tinyllm::check {
namespace {

// True if the pool computes each part of a task once.
bool is_pool_usable() {
  std::vector<int> done(40);
  ThreadPool::shared().run(40, [&](int64_t part, int) { ++done[part]; });
  return std::count(done.begin(), done.end(), 1) == 40;
}

// Lets allocation 1, 2, 3, ... of a forward pass fail, until a pass has fewer allocations. Each
// failure must reach the caller as std::bad_alloc, and the next pass must have the same bits.
void check_failing_allocations(const KernelTable& kernels, Type type, Phase phase) {
  Model model(type);
  const std::vector<char> expected = model.compute(kernels, phase);
  int64_t failed = 0;
  for (;;) {
    bool is_thrown = false;
    until_failure = failed + 1;
    try {
      model.compute(kernels, phase);
    } catch (const std::bad_alloc&) {
      is_thrown = true;
    }
    const bool is_reached = until_failure.exchange(0) <= 0;
    if (!is_reached) break;
    expect(is_thrown, kernels, "that a failed allocation reaches the caller");
    expect(is_pool_usable(), kernels, "a usable pool after a failed allocation");
    ++failed;
  }
  expect(failed > 50, kernels, "more than 50 allocations in a forward pass");
  expect(model.compute(kernels, phase) == expected, kernels,
         "the same bits after failed allocations");
}

}  // namespace

void check_allocations(const KernelTable& kernels) {
  for (Phase phase : {Phase::prefill, Phase::decode}) {
    check_failing_allocations(kernels, Type::bfloat16, phase);
  }
}

}  // namespace tinyllm::check
