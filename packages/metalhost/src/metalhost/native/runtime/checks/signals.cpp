#include <signal.h>
#include <stdint.h>
#include <sys/time.h>
#include <ucontext.h>

#include "checks/checks.h"
#include "fibers/fiber.h"
#include "memory/buffer.h"
#include "threads/threadgroup.h"

namespace metalhost {
namespace {

const void* interrupted_pc(const ucontext_t& context) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(context.uc_mcontext.gregs[REG_RIP]);
#else
  return reinterpret_cast<const void*>(context.uc_mcontext.pc);
#endif
}

const char* name_of(int number) {
  switch (number) {
    case SIGFPE: return "integer division by zero";
    case SIGILL: return "illegal instruction";
    case SIGTRAP: return "trap";
    default: return "invalid memory access";
  }
}

void on_signal(int number, siginfo_t* info, void* context) {
  const Coordinates* thread = running_thread();
  unsigned index = thread ? thread->index : 0, group = running_group();
  const void* pc = interrupted_pc(*static_cast<const ucontext_t*>(context));
  Place place{.frames = Frames::interrupted(pc)};
  const char* p = static_cast<const char*>(info->si_addr);
  bool memory = number == SIGSEGV || number == SIGBUS;
  if (number == SIGALRM) {
    report("timeout", place, {}, "not finished after %u ms (thread %u, group %u)",
           launch.timeout_ms, index, group);
  } else if (memory && on_guard_page(p)) {
    report("stack-overflow", place, {}, "the variables of thread %u do not fit (group %u)", index,
           group);
  } else if (const Buffer* b = memory ? buffer_at(p) : nullptr; b && p >= b->begin && p < b->end) {
    report("write-to-input", place, {}, "write to '%s' (thread %u, group %u)", b->record->name,
           index, group);
  } else if (b) {
    report("out-of-bounds", place, {}, "access at byte %lld of '%s', which has %llu "
           "(thread %u, group %u)",
           (long long)(p - b->begin), b->record->name,
           static_cast<unsigned long long>(b->record->bytes), index, group);
  } else {
    report("crash", place, {}, "%s at %p (thread %u, group %u)", name_of(number),
           static_cast<const void*>(p), index, group);
  }
  finish(false);
}

}  // namespace

void install_signal_handlers() {
  static char stack[64 << 10];  // because the stack of the fiber may have overflowed
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGALRM}) {
    sigaction(number, &action, nullptr);
  }
  itimerval limit{};
  limit.it_value.tv_sec = launch.timeout_ms / 1000;
  limit.it_value.tv_usec = launch.timeout_ms % 1000 * 1000;
  setitimer(ITIMER_REAL, &limit, nullptr);
}

}  // namespace metalhost
