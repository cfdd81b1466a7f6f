#include "mlx/fork.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

namespace tinyllm {
namespace {

std::atomic<bool> is_forked = false;

}  // namespace

void record_use() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); });
  static_cast<void>(registered);
}

void refuse_after_fork() {
  if (!is_forked.load(std::memory_order_relaxed)) return;
  throw std::runtime_error(
      "fork: expected a process that computes by itself, got a child forked after its parent had "
      "computed: start processes with the method \"spawn\"");
}

}  // namespace tinyllm
