#include "threadgroup.h"

#include <string.h>

#include "buffer.h"
#include "coordinates.h"
#include "fiber.h"
#include "report.h"
#include "threadgroup_memory.h"

namespace metalhost {
namespace {

// Barriers passed so far, by what they order.
struct Epochs {
  uint32_t device, threadgroup;

  void advance(uint32_t flags) {
    device += flags & 1;
    threadgroup += flags >> 1 & 1;
  }
};

struct Thread {
  Coordinates at;
  void* stack;            // while it does not run
  const char* operation;  // that it waits in
  Site site;
  Frames frames;    // the calls that led there, if the launch is checked
  uint32_t flags;   // of the barrier that it waits at
  uint32_t active;  // lanes that took part in its last simd operation

  bool waits_with(const Thread& other) const {
    return operation == other.operation && site == other.site;
  }
};

// Sets of lanes have a bit for each.
struct Simdgroup {
  uint32_t members, live;
  uint32_t in_operation, at_barrier;
  Epochs epochs;
  alignas(64) unsigned char handed_in[LANES][SLOT_BYTES];
  // What the lanes of the last complete operation read. A lane that is already in the next one hands
  // in elsewhere, so that the others still find what was there.
  alignas(64) unsigned char handed_out[LANES][SLOT_BYTES];
};

Thread threads[MAX_THREADS];
Simdgroup simdgroups[MAX_THREADS / LANES];
Schedule* schedule;
Thread* running;
void* caller;  // the stack of run_group
uint32_t group, size, live, at_barrier;
Epochs epochs;

template <class Visit>
void each_lane(uint32_t lanes, Visit visit) {
  for (; lanes; lanes &= lanes - 1) visit(uint32_t(__builtin_ctz(lanes)));
}

uint32_t number_of(const Simdgroup& s) { return uint32_t(&s - simdgroups); }
Thread& thread_of(const Simdgroup& s, uint32_t lane) { return threads[number_of(s) * LANES + lane]; }
Simdgroup& own_simdgroup() { return simdgroups[running->at.simdgroup]; }
uint32_t own_bit() { return 1u << running->at.lane; }

[[noreturn]] void fail_diverged() {
  const Thread *one = nullptr, *other = nullptr;
  uint32_t with_one = 0, elsewhere = 0;
  for (uint32_t i = 0; i < size; ++i) {
    const Thread& t = threads[i];
    const Simdgroup& s = simdgroups[t.at.simdgroup];
    if (!((s.in_operation | s.at_barrier) >> t.at.lane & 1)) continue;
    if (!one) one = &t;
    if (t.waits_with(*one)) {
      ++with_one;
      continue;
    }
    if (!other) other = &t;
    ++elsewhere;
  }
  if (other) {
    report("divergence", {.site = one->site}, {},
           "%u threads (first %u) wait in %s, %u others (first %u) in %s at %s:%d, %u have returned "
           "(group %u)",
           with_one, one->at.index, one->operation, elsewhere, other->at.index, other->operation,
           other->site.file, other->site.line, size - live, group);
  } else {
    report("divergence", {.site = one->site}, {},
           "%u threads (first %u) wait in %s, which %u have returned without reaching (group %u)",
           with_one, one->at.index, one->operation, size - live, group);
  }
  finish(false);
}

// Both wait at the same place. Did they come there by the same calls? A compiler may make several of
// one, so diagnosis.py looks at the lines.
void compare_calls(const Thread& one, const Thread& other) {
  if (one.frames == other.frames) return;
  report("divergence", {.frames = one.frames}, other.frames,
         "thread %u reaches %s from here, thread %u from {other} (group %u)", one.at.index,
         one.operation, other.at.index, group);
}

// These lanes wait at the same place, and no other has to come.
void release_operation(Simdgroup& s, uint32_t lanes) {
  uint32_t flags = ~0u;
  each_lane(lanes, [&](uint32_t lane) {
    Thread& t = thread_of(s, lane);
    t.active = lanes;
    flags &= t.flags;
    memcpy(s.handed_out[lane], s.handed_in[lane], SLOT_BYTES);
  });
  s.epochs.advance(flags);
  s.in_operation &= ~lanes;
  schedule->make_ready(number_of(s), lanes);
}

uint32_t lanes_that_wait_with(const Simdgroup& s, const Thread& first) {
  uint32_t lanes = 0;
  each_lane(s.in_operation, [&](uint32_t lane) {
    if (thread_of(s, lane).waits_with(first)) lanes |= 1u << lane;
  });
  return lanes;
}

// All live lanes of the simdgroup wait in a simd operation.
void complete_operation(Simdgroup& s) {
  const Thread& first = thread_of(s, uint32_t(__builtin_ctz(s.in_operation)));
  bool divergence_allowed = launch.flags & ALLOW_DIVERGENCE;
  if (lanes_that_wait_with(s, first) != s.in_operation) {
    if (!divergence_allowed) fail_diverged();
    return;  // release_diverged will find them
  }
  if (!divergence_allowed) {
    each_lane(s.in_operation, [&](uint32_t lane) { compare_calls(first, thread_of(s, lane)); });
  }
  if (s.live != s.members && !divergence_allowed) {
    report("inactive-lane", {.site = first.site}, {},
           "%d of the %d lanes of simdgroup %u have returned before %s (group %u)",
           __builtin_popcount(s.members & ~s.live), __builtin_popcount(s.members), number_of(s),
           first.operation, group);
  }
  release_operation(s, s.in_operation);
}

// Where divergence is allowed, a simd operation is one of the lanes that reach it together. Those in
// front in the text go on first: where branches join again they wait for the others.
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
    release_operation(s, lanes_that_wait_with(s, *first));
    any = true;
  }
  return any;
}

// All live threads of the group wait at a barrier.
void complete_barrier() {
  uint32_t flags = ~0u;
  const Thread* first = nullptr;
  for (uint32_t i = 0; i < size; ++i) {
    const Thread& t = threads[i];
    if (!(simdgroups[t.at.simdgroup].at_barrier >> t.at.lane & 1)) fail_diverged();  // it returned
    if (!first) first = &t;
    if (!t.waits_with(*first)) fail_diverged();
    compare_calls(*first, t);
    flags &= t.flags;
  }
  epochs.advance(flags);
  at_barrier = 0;
  for (uint32_t i = 0; i * LANES < size; ++i) {
    schedule->make_ready(i, simdgroups[i].at_barrier);
    simdgroups[i].at_barrier = 0;
  }
}

// The running thread cannot go on: another one does.
void wait() {
  if (live == 0) {
    running = nullptr;
    void* never;
    metalhost_switch(&never, caller);
  }
  if (!schedule->anyone_ready()) {
    bool released = (launch.flags & ALLOW_DIVERGENCE) && release_diverged();
    if (!released) fail_diverged();
  }
  Thread* before = running;
  running = &threads[schedule->next()];
  if (running != before) metalhost_switch(&before->stack, running->stack);
}

void run_thread() {
  kernel_entry(buffer_addresses, running->at);
  Simdgroup& s = own_simdgroup();
  s.live &= ~own_bit();
  --live;
  if (s.in_operation && s.in_operation == s.live) complete_operation(s);
  if (at_barrier && at_barrier == live) complete_barrier();
  wait();
  __builtin_unreachable();
}

}  // namespace

void run_group(uint32_t number, Schedule& order) {
  Coordinates of_group = coordinates_of_group(number);
  group = number;
  schedule = &order;
  size = live = of_group.group_size[0] * of_group.group_size[1] * of_group.group_size[2];
  at_barrier = 0;
  epochs = {};
  renew_threadgroup_memory();
  schedule->begin_group();
  for (uint32_t i = 0; i < size; ++i) {
    threads[i].at = coordinates_of(i, of_group);
    threads[i].stack = fresh_stack(i, run_thread);
  }
  for (uint32_t i = 0; i * LANES < size; ++i) {
    Simdgroup& s = simdgroups[i];
    uint32_t rest = size - i * LANES;
    s.members = s.live = rest >= LANES ? ALL_LANES : (1u << rest) - 1;
    s.in_operation = s.at_barrier = 0;
    s.epochs = {};
    schedule->make_ready(i, s.members);
  }
  running = &threads[schedule->next()];
  metalhost_switch(&caller, running->stack);
}

const Coordinates* running_thread() { return running ? &running->at : nullptr; }
uint32_t running_group() { return group; }

Accessor accessor_of_threadgroup_memory(uint32_t pc) {
  uint32_t simd_epoch = own_simdgroup().epochs.threadgroup;
  return {group, epochs.threadgroup, uint16_t(simd_epoch), running->at.index, pc};
}

Accessor accessor_of_device_memory(uint32_t pc) {
  uint32_t simd_epoch = own_simdgroup().epochs.device;
  return {group, epochs.device, uint16_t(simd_epoch), running->at.index, pc};
}

// What kernels call.

namespace {

void note_place(const char* operation, Site site, uint32_t flags, Caller caller) {
  running->operation = operation, running->site = site, running->flags = flags;
  if (launch.flags & CHECKED) running->frames = caller.frames();
}

Exchange meet(const void* value, uint32_t bytes) {
  Simdgroup& s = own_simdgroup();
  Thread& self = *running;
  memcpy(s.handed_in[self.at.lane], value, bytes);
  s.in_operation |= own_bit();
  if (s.in_operation == s.live) complete_operation(s);
  wait();
  return {s.handed_out[0], self.active, self.at.lane};
}

}  // namespace

Exchange exchange(const void* value, uint32_t bytes, const char* operation, Site site) {
  note_place(operation, site, 0, METALHOST_CALLER);
  return meet(value, bytes);
}

void simdgroup_barrier(uint32_t flags, Site site) {
  note_place("simdgroup_barrier", site, flags, METALHOST_CALLER);
  meet(nullptr, 0);
}

void threadgroup_barrier(uint32_t flags, Site site) {
  note_place("threadgroup_barrier", site, flags, METALHOST_CALLER);
  own_simdgroup().at_barrier |= own_bit();
  if (++at_barrier == live) complete_barrier();
  wait();
}

void inactive_lane(const char* operation, Site site) {
  report("inactive-lane", {.site = site}, {}, "%s reads an inactive lane (thread %u, group %u)",
         operation, running->at.index, group);
}

}  // namespace metalhost
