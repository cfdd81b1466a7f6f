#include "threads/threadgroup.h"

#include <string.h>

#include "fibers/fiber.h"
#include "host/report.h"
#include "memory/buffer.h"
#include "memory/threadgroup_memory.h"
#include "threads/coordinates.h"

namespace metalhost {
namespace {

// Number of barriers passed, for each kind of memory.
struct Epochs {
  uint32_t device, threadgroup;

  void advance(uint32_t flags) {
    device += flags & 1;
    threadgroup += flags >> 1 & 1;
  }
};

struct Thread {
  Coordinates at;
  void* stack;            // saved stack top, while the thread does not run
  const char* operation;  // barrier or simd operation at which it waits
  Site site;              // location of the operation
  Frames frames;          // calls that led to the operation, in a checked launch
  uint32_t flags;         // memory flags of the barrier at which it waits
  uint32_t active;        // lanes that took part in its last simd operation, as bits

  bool waits_with(const Thread& other) const {
    return operation == other.operation && site == other.site;
  }
};

// Sets of lanes are bits: bit i is lane i.
struct Simdgroup {
  uint32_t members, live;             // lanes that exist, and lanes that have not returned
  uint32_t in_operation, at_barrier;  // lanes that wait
  Epochs epochs;
  // A lane writes its value to `pending`. When the operation is complete, the values are copied to
  // `completed`, where the lanes read them. A fast lane may reach its next operation before a slow
  // lane has read the values of this one.
  alignas(64) unsigned char pending[LANES][SLOT_BYTES];
  alignas(64) unsigned char completed[LANES][SLOT_BYTES];
};

Thread threads[MAX_THREADS];
Simdgroup simdgroups[MAX_THREADS / LANES];
Schedule* schedule;
Thread* running;
void* caller;  // stack of run_group
uint32_t group, size, live, at_barrier;
Epochs epochs;

template <class Visit>
void each_lane(uint32_t lanes, Visit visit) {
  for (; lanes; lanes &= lanes - 1) visit(uint32_t(__builtin_ctz(lanes)));
}

uint32_t index_of(const Simdgroup& s) { return uint32_t(&s - simdgroups); }
Thread& thread_of(const Simdgroup& s, uint32_t lane) { return threads[index_of(s) * LANES + lane]; }
Simdgroup& running_simdgroup() { return simdgroups[running->at.simdgroup]; }
uint32_t running_lane_bit() { return 1u << running->at.lane; }

[[noreturn]] void fail_diverged() {
  const Thread *first = nullptr, *other = nullptr;
  uint32_t with_first = 0, elsewhere = 0;
  for (uint32_t i = 0; i < size; ++i) {
    const Thread& t = threads[i];
    const Simdgroup& s = simdgroups[t.at.simdgroup];
    bool waits = (s.in_operation | s.at_barrier) >> t.at.lane & 1;
    if (!waits) continue;
    if (!first) first = &t;
    if (t.waits_with(*first)) {
      ++with_first;
      continue;
    }
    if (!other) other = &t;
    ++elsewhere;
  }
  if (other) {
    report("divergence", {.site = first->site}, {},
           "%u threads (first %u) wait in %s, %u others (first %u) in %s at %s:%d, %u have returned "
           "(group %u)",
           with_first, first->at.index, first->operation, elsewhere, other->at.index,
           other->operation, other->site.file, other->site.line, size - live, group);
  } else {
    report("divergence", {.site = first->site}, {},
           "%u threads (first %u) wait in %s, which %u have returned without reaching (group %u)",
           with_first, first->at.index, first->operation, size - live, group);
  }
  finish(false);
}

// Reports two threads that wait at the same site but came by different calls. The compiler may have
// duplicated a call, so diagnosis.py compares the lines of the calls.
void compare_callers(const Thread& first, const Thread& other) {
  if (first.frames == other.frames) return;
  report("divergence", {.frames = first.frames}, other.frames,
         "thread %u reaches %s from here, thread %u from {other} (group %u)", first.at.index,
         first.operation, other.at.index, group);
}

// Completes a simd operation for these lanes, which wait at the same site.
void release_operation(Simdgroup& s, uint32_t lanes) {
  uint32_t flags = ~0u;
  each_lane(lanes, [&](uint32_t lane) {
    Thread& t = thread_of(s, lane);
    t.active = lanes;
    flags &= t.flags;
    memcpy(s.completed[lane], s.pending[lane], SLOT_BYTES);
  });
  s.epochs.advance(flags);
  s.in_operation &= ~lanes;
  schedule->make_ready(index_of(s), lanes);
}

uint32_t lanes_waiting_with(const Simdgroup& s, const Thread& first) {
  uint32_t lanes = 0;
  each_lane(s.in_operation, [&](uint32_t lane) {
    if (thread_of(s, lane).waits_with(first)) lanes |= 1u << lane;
  });
  return lanes;
}

// Called when all live lanes of the simdgroup wait in a simd operation.
void complete_operation(Simdgroup& s) {
  const Thread& first = thread_of(s, uint32_t(__builtin_ctz(s.in_operation)));
  bool divergence_allowed = launch.flags & ALLOW_DIVERGENCE;
  if (lanes_waiting_with(s, first) != s.in_operation) {
    if (!divergence_allowed) fail_diverged();
    return;  // release_diverged will release them in parts
  }
  if (!divergence_allowed) {
    each_lane(s.in_operation, [&](uint32_t lane) { compare_callers(first, thread_of(s, lane)); });
  }
  if (s.live != s.members && !divergence_allowed) {
    report("inactive-lane", {.site = first.site}, {},
           "%d of the %d lanes of simdgroup %u have returned before %s (group %u)",
           __builtin_popcount(s.members & ~s.live), __builtin_popcount(s.members), index_of(s),
           first.operation, group);
  }
  release_operation(s, s.in_operation);
}

// Releases diverged lanes, if divergence is allowed. A simd operation then includes the lanes that
// reach it together. The operation that is first in the text goes first, so that lanes behind a
// branch wait for the lanes still inside it.
bool release_diverged() {
  bool any = false;
  for (uint32_t i = 0; i * LANES < size; ++i) {
    Simdgroup& s = simdgroups[i];
    if (!s.in_operation) continue;
    const Thread* first = nullptr;
    each_lane(s.in_operation, [&](uint32_t lane) {
      const Thread& t = thread_of(s, lane);
      if (!first || t.site.is_before(first->site)) first = &t;
    });
    release_operation(s, lanes_waiting_with(s, *first));
    any = true;
  }
  return any;
}

// Called when as many threads wait at a barrier as are live.
void complete_barrier() {
  uint32_t flags = ~0u;
  const Thread* first = nullptr;
  for (uint32_t i = 0; i < size; ++i) {
    const Thread& t = threads[i];
    bool has_returned = !(simdgroups[t.at.simdgroup].at_barrier >> t.at.lane & 1);
    if (has_returned) fail_diverged();
    if (!first) first = &t;
    if (!t.waits_with(*first)) fail_diverged();
    compare_callers(*first, t);
    flags &= t.flags;
  }
  epochs.advance(flags);
  at_barrier = 0;
  for (uint32_t i = 0; i * LANES < size; ++i) {
    schedule->make_ready(i, simdgroups[i].at_barrier);
    simdgroups[i].at_barrier = 0;
  }
}

// Switches from the running thread to the next ready thread. Returns when the thread runs again.
void yield_thread() {
  if (live == 0) {
    running = nullptr;
    void* unused;
    metalhost_switch(&unused, caller);
  }
  if (!schedule->any_ready()) {
    bool released = (launch.flags & ALLOW_DIVERGENCE) && release_diverged();
    if (!released) fail_diverged();
  }
  Thread* before = running;
  running = &threads[schedule->next()];
  if (running != before) metalhost_switch(&before->stack, running->stack);
}

void run_thread() {
  kernel_entry(buffer_addresses, running->at);
  Simdgroup& s = running_simdgroup();
  s.live &= ~running_lane_bit();
  --live;
  if (s.in_operation && s.in_operation == s.live) complete_operation(s);
  if (at_barrier && at_barrier == live) complete_barrier();
  yield_thread();
  __builtin_unreachable();
}

}  // namespace

void run_group(uint32_t number, Schedule& group_schedule) {
  Coordinates of_group = group_coordinates(number);
  group = number;
  schedule = &group_schedule;
  size = live = of_group.group_size[0] * of_group.group_size[1] * of_group.group_size[2];
  at_barrier = 0;
  epochs = {};
  reset_threadgroup_memory();
  schedule->begin_group();
  for (uint32_t i = 0; i < size; ++i) {
    threads[i].at = thread_coordinates(i, of_group);
    threads[i].stack = fresh_stack(i, run_thread);
  }
  for (uint32_t i = 0; i * LANES < size; ++i) {
    Simdgroup& s = simdgroups[i];
    uint32_t remaining = size - i * LANES;
    s.members = s.live = remaining >= LANES ? ALL_LANES : (1u << remaining) - 1;
    s.in_operation = s.at_barrier = 0;
    s.epochs = {};
    schedule->make_ready(i, s.members);
  }
  running = &threads[schedule->next()];
  metalhost_switch(&caller, running->stack);
}

const Coordinates* running_thread() { return running ? &running->at : nullptr; }
uint32_t running_group() { return group; }

Accessor threadgroup_memory_accessor(uint32_t pc) {
  uint32_t simd_epoch = running_simdgroup().epochs.threadgroup;
  return {group, epochs.threadgroup, uint16_t(simd_epoch), running->at.index, pc};
}

Accessor device_memory_accessor(uint32_t pc) {
  uint32_t simd_epoch = running_simdgroup().epochs.device;
  return {group, epochs.device, uint16_t(simd_epoch), running->at.index, pc};
}

// Functions that kernels call.

namespace {

void record_wait(const char* operation, Site site, uint32_t flags, Caller by) {
  running->operation = operation, running->site = site, running->flags = flags;
  if (launch.flags & CHECKED) running->frames = by.frames();
}

Exchange wait_for_simdgroup(const void* value, uint32_t bytes) {
  Simdgroup& s = running_simdgroup();
  Thread& self = *running;
  memcpy(s.pending[self.at.lane], value, bytes);
  s.in_operation |= running_lane_bit();
  if (s.in_operation == s.live) complete_operation(s);
  yield_thread();
  return {s.completed[0], self.active, self.at.lane};
}

}  // namespace

Exchange exchange(const void* value, uint32_t bytes, const char* operation, Site site) {
  record_wait(operation, site, 0, METALHOST_CALLER);
  return wait_for_simdgroup(value, bytes);
}

void simdgroup_barrier(uint32_t flags, Site site) {
  record_wait("simdgroup_barrier", site, flags, METALHOST_CALLER);
  wait_for_simdgroup(nullptr, 0);
}

void threadgroup_barrier(uint32_t flags, Site site) {
  record_wait("threadgroup_barrier", site, flags, METALHOST_CALLER);
  running_simdgroup().at_barrier |= running_lane_bit();
  if (++at_barrier == live) complete_barrier();
  yield_thread();
}

bool weak_exchange_fails() { return schedule->weak_exchange_fails(); }

void inactive_lane(const char* operation, Site site) {
  report("inactive-lane", {.site = site}, {}, "%s reads an inactive lane (thread %u, group %u)",
         operation, running->at.index, group);
}

}  // namespace metalhost
