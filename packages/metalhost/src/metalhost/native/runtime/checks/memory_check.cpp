#include "checks/checks.h"
#include "fibers/fiber.h"
#include "memory/buffer.h"
#include "memory/threadgroup_memory.h"
#include "threads/threadgroup.h"

extern "C" const char __executable_start[];  // from the linker
extern "C" const char _end[];

namespace metalhost {
namespace {

bool is_atomic(Access access) { return access != Access::READ && access != Access::WRITE; }

bool is_load(Access access) { return access == Access::READ || access == Access::ATOMIC_LOAD; }

bool needs_value(Access access) {
  return access != Access::WRITE && access != Access::ATOMIC_STORE;
}

const char* name_of(Access access) {
  switch (access) {
    case Access::READ:
      return "read";
    case Access::WRITE:
      return "write";
    case Access::ATOMIC_LOAD:
      return "atomic load";
    default:
      return "atomic operation";
  }
}

// Returns the accesses that race with `access`, or null.
const AccessSet* racing_accesses(const Shadow& shadow, Access access, const Accessor& self) {
  if (shadow.writes.races_with(self)) return &shadow.writes;
  if (!is_atomic(access) && shadow.atomics.races_with(self)) return &shadow.atomics;
  if (!is_load(access) && shadow.reads.races_with(self)) return &shadow.reads;
  if (access == Access::WRITE && shadow.atomic_loads.races_with(self)) return &shadow.atomic_loads;
  return nullptr;
}

const char* name_of(const Shadow& shadow, const AccessSet* set) {
  return name_of(set == &shadow.reads          ? Access::READ
                 : set == &shadow.writes       ? Access::WRITE
                 : set == &shadow.atomic_loads ? Access::ATOMIC_LOAD
                                               : Access::ATOMIC_UPDATE);
}

void record(Shadow& shadow, Access access, const Accessor& self) {
  AccessSet& set = access == Access::READ          ? shadow.reads
                   : access == Access::WRITE       ? shadow.writes
                   : access == Access::ATOMIC_LOAD ? shadow.atomic_loads
                                                   : shadow.atomics;
  set.add(self);
}

struct Target {
  const char* kind;  // "threadgroup variable" or "output"
  const char* name;
  uint64_t byte;
  bool has_value;  // initialized by the launch
};

// Compares an access with the earlier accesses to the byte. Returns true if there is no fault.
bool check_byte(const Shadow& shadow, const Accessor& self, Access access, Caller caller,
                const Target& target) {
  bool clean = true;
  if (needs_value(access) && !target.has_value && !shadow.written()) {
    clean = false;
    report("uninitialized", {.frames = caller.frames()}, {},
           "%s of %s '%s' at byte %llu, which was never written (thread %u, group %u)",
           name_of(access), target.kind, target.name, static_cast<unsigned long long>(target.byte),
           self.thread, self.group);
  }
  if (const AccessSet* other = racing_accesses(shadow, access, self)) {
    clean = false;
    // The last access of the set may be ordered, or by this thread itself. Then an earlier one
    // races.
    bool names_last = other->last_races_with(self);
    bool in_group = names_last ? other->group() == self.group : !other->in_several_groups();
    const char* missing = in_group ? "no barrier orders them" : "nothing orders groups";
    report("race", {.frames = caller.frames()}, Frames::at(other->pc()),
           "%s of %s '%s' at byte %llu by thread %u of group %u, and %s by %s %u of group %u at "
           "{other}: %s",
           name_of(access), target.kind, target.name, static_cast<unsigned long long>(target.byte),
           self.thread, self.group, name_of(shadow, other),
           names_last ? "thread" : "several threads, the last one", other->thread(), other->group(),
           missing);
  }
  return clean;
}

void check_threadgroup(const char* p, uint64_t bytes, Access access, Caller caller) {
  uint32_t offset = threadgroup_offset(p);
  Accessor self = threadgroup_memory_accessor(offset_of(caller.pc));
  const Variable* variable = variable_containing(offset, uint32_t(bytes));
  if (!variable) {
    const Variable* near = variable_before(offset);
    long long byte = near ? (long long)(offset) - near->offset : 0;
    report("out-of-bounds", {.frames = caller.frames()}, {},
           "%s of %llu bytes at byte %lld of threadgroup variable '%s', which has %u "
           "(thread %u, group %u)",
           name_of(access), static_cast<unsigned long long>(bytes), byte, near ? near->name : "?",
           near ? near->bytes : 0, self.thread, self.group);
    finish(false);
  }
  bool clean = true;  // false after the first faulty byte, so that one access gives one report
  for (uint32_t i = offset; i < offset + bytes; ++i) {
    Shadow& shadow = threadgroup_shadow(i);
    if (shadow.belongs_to_other_group(self.group)) shadow = {};
    Target target{"threadgroup variable", variable->name, i - variable->offset, false};
    clean = clean && check_byte(shadow, self, access, caller, target);
    record(shadow, access, self);
  }
}

void check_buffer(Buffer& b, const char* p, uint64_t bytes, Access access, Caller caller) {
  Accessor self = device_memory_accessor(offset_of(caller.pc));
  if (p < b.begin || p + bytes > b.end) {
    report("out-of-bounds", {.frames = caller.frames()}, {},
           "%s of %llu bytes at byte %lld of '%s', which has %llu (thread %u, group %u)",
           name_of(access), static_cast<unsigned long long>(bytes), (long long)(p - b.begin),
           b.record->name, static_cast<unsigned long long>(b.record->bytes), self.thread,
           self.group);
    finish(false);
  }
  if (!b.is_output()) {
    if (is_load(access)) return;
    report("write-to-input", {.frames = caller.frames()}, {}, "%s to '%s' (thread %u, group %u)",
           name_of(access), b.record->name, self.thread, self.group);
    finish(false);
  }
  if (!is_load(access)) b.last_write = self.pc;
  bool clean = true;  // false after the first faulty byte, so that one access gives one report
  for (uint64_t i = uint64_t(p - b.begin); i < uint64_t(p - b.begin) + bytes; ++i) {
    Target target{"output", b.record->name, i, bool(b.record->flags & INITIALIZED)};
    clean = clean && check_byte(b.shadow[i], self, access, caller, target);
    record(b.shadow[i], access, self);
  }
}

}  // namespace

void check_access(const volatile void* address, uint64_t bytes, Access access, Caller caller) {
  if (!running_thread()) return;
  const char* p = const_cast<const char*>(static_cast<const volatile char*>(address));
  if (on_fiber_stack(p)) return;
  if (in_threadgroup_memory(p)) return check_threadgroup(p, bytes, access, caller);
  if (Buffer* b = buffer_at(p)) return check_buffer(*b, p, bytes, access, caller);
  bool constant_table = p >= __executable_start && p < _end && access == Access::READ;
  if (constant_table) return;
  report("out-of-bounds", {.frames = caller.frames()}, {},
         "%s of %llu bytes at %p, which is not memory of the kernel (thread %u, group %u)",
         name_of(access), static_cast<unsigned long long>(bytes), static_cast<const void*>(p),
         running_thread()->index, running_group());
  finish(false);
}

}  // namespace metalhost
