// Functions that a checked kernel calls, because it is compiled with `-fsanitize=thread` and
// `-fsanitize=bounds,...`.
//
// The sanitizers' own runtimes are not linked. They do not know threadgroups and barriers, and
// would treat all fibers as one thread.
#include <string.h>

#include "checks/checks.h"
#include "host/launch.h"
#include "threads/threadgroup.h"

using metalhost::Access;
using metalhost::check_access;

#define METALHOST_HOOK(prefix, bytes)                            \
  void __tsan_##prefix##read##bytes(void* p) {                   \
    check_access(p, bytes, Access::READ, METALHOST_CALLER);      \
  }                                                              \
  void __tsan_##prefix##write##bytes(void* p) {                  \
    check_access(p, bytes, Access::WRITE, METALHOST_CALLER);     \
  }
#define METALHOST_HOOKS(bytes)         \
  METALHOST_HOOK(, bytes)              \
  METALHOST_HOOK(unaligned_, bytes)    \
  METALHOST_HOOK(volatile_, bytes)     \
  METALHOST_HOOK(unaligned_volatile_, bytes)

extern "C" {

METALHOST_HOOKS(1)
METALHOST_HOOKS(2)
METALHOST_HOOKS(4)
METALHOST_HOOKS(8)
METALHOST_HOOKS(16)

void __tsan_read_range(void* p, size_t bytes) {
  check_access(p, bytes, Access::READ, METALHOST_CALLER);
}
void __tsan_write_range(void* p, size_t bytes) {
  check_access(p, bytes, Access::WRITE, METALHOST_CALLER);
}

// clang calls these functions instead of memcpy, memmove and memset.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  check_access(from, bytes, Access::READ, METALHOST_CALLER);
  check_access(to, bytes, Access::WRITE, METALHOST_CALLER);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  check_access(from, bytes, Access::READ, METALHOST_CALLER);
  check_access(to, bytes, Access::WRITE, METALHOST_CALLER);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  check_access(to, bytes, Access::WRITE, METALHOST_CALLER);
  return memset(to, value, bytes);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

// Start of the data that the checks of undefined behavior pass: the location.
struct UndefinedBehavior {
  const char* file;
  uint32_t line, column;
};

static void report_undefined(const metalhost::Place& place, const char* what) {
  const metalhost::Coordinates* thread = metalhost::running_thread();
  metalhost::report("undefined", place, {}, "%s (thread %u, group %u)", what,
                    thread ? thread->index : 0, metalhost::running_group());
}

#define METALHOST_UNDEFINED(name, what)                             \
  void __ubsan_handle_##name(const UndefinedBehavior* at) {         \
    metalhost::Site site{at->file, int(at->line), int(at->column)}; \
    report_undefined({site, METALHOST_CALLER.frames()}, what);      \
  }

METALHOST_UNDEFINED(add_overflow, "a signed sum overflows")
METALHOST_UNDEFINED(sub_overflow, "a signed difference overflows")
METALHOST_UNDEFINED(mul_overflow, "a signed product overflows")
METALHOST_UNDEFINED(negate_overflow, "a signed negation overflows")
METALHOST_UNDEFINED(divrem_overflow, "an integer is divided by zero, or the quotient overflows")
METALHOST_UNDEFINED(float_cast_overflow,
                    "a number is converted to an integer type that cannot hold it")
METALHOST_UNDEFINED(shift_out_of_bounds, "a shift by a negative number or by too many bits")
METALHOST_UNDEFINED(out_of_bounds, "an index beyond the end of its array")
METALHOST_UNDEFINED(type_mismatch_v1, "an access through a pointer that is not aligned for its type")

}  // extern "C"

void metalhost::vector_index_out_of_bounds() {
  report_undefined({.frames = METALHOST_CALLER.frames()}, "an index beyond the end of a vector");
}

void metalhost::atomic_access(const volatile void* address, uint32_t bytes, AtomicAccess access) {
  if (!(launch.flags & CHECKED)) return;
  Access kind = access == AtomicAccess::LOAD    ? Access::ATOMIC_LOAD
                : access == AtomicAccess::STORE ? Access::ATOMIC_STORE
                                                : Access::ATOMIC_UPDATE;
  check_access(address, bytes, kind, METALHOST_CALLER);
}
