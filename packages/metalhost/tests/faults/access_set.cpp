// Compares AccessSet with the definition of a race, on every program of four accesses to one byte.
//
// An access is by one of five threads: two of one simdgroup, one of another simdgroup, and two of
// another group. After each access there is no barrier, a simdgroup barrier or a threadgroup
// barrier.
#include "memory/shadow.h"

#include <stdio.h>

using namespace metalhost;

enum Kind { READ, WRITE, ATOMIC_LOAD, ATOMIC_UPDATE };
constexpr int LENGTH = 4, THREADS = 5, KINDS = 4, BARRIERS = 3;

struct Access {
  Kind kind;
  Accessor by;
};

bool may_race(Kind a, Kind b) {
  bool writes = a == WRITE || a == ATOMIC_UPDATE || b == WRITE || b == ATOMIC_UPDATE;
  return writes && (a <= WRITE || b <= WRITE);
}

bool is_race(const Access& a, const Access& b) {
  if (!may_race(a.kind, b.kind)) return false;
  bool same_group = a.by.group == b.by.group;
  if (same_group && a.by.thread == b.by.thread) return false;
  if (!same_group) return true;
  if (a.by.epoch != b.by.epoch) return false;
  return a.by.thread / 32 != b.by.thread / 32 || a.by.simd_epoch == b.by.simd_epoch;
}

bool has_race(const Access* accesses) {
  for (int i = 0; i < LENGTH; ++i) {
    for (int k = 0; k < i; ++k) {
      if (is_race(accesses[k], accesses[i])) return true;
    }
  }
  return false;
}

bool is_detected(const Access* accesses) {
  AccessSet sets[KINDS] = {};
  bool found = false;
  for (int i = 0; i < LENGTH; ++i) {
    const Access& a = accesses[i];
    for (int kind = 0; kind < KINDS; ++kind) {
      found = found || (may_race(Kind(kind), a.kind) && sets[kind].races_with(a.by));
    }
    sets[a.kind].add(a.by);
  }
  return found;
}

int main() {
  const uint32_t groups[THREADS] = {0, 0, 0, 1, 1}, threads[THREADS] = {0, 1, 33, 0, 1};
  long programs = 1;
  for (int i = 0; i < LENGTH; ++i) programs *= THREADS * KINDS * BARRIERS;
  long races = 0;
  for (long number = 0; number < programs; ++number) {
    Access accesses[LENGTH];
    long rest = number;
    uint32_t epoch = 0;
    uint16_t simd_epoch = 0;
    for (Access& a : accesses) {
      int thread = int(rest % THREADS), barrier = int(rest / THREADS / KINDS % BARRIERS);
      a.kind = Kind(rest / THREADS % KINDS);
      a.by = {groups[thread], epoch, simd_epoch, threads[thread], 0};
      simd_epoch += barrier == 1;
      epoch += barrier == 2;
      rest /= THREADS * KINDS * BARRIERS;
    }
    bool expected = has_race(accesses);
    if (is_detected(accesses) != expected) {
      printf("program %ld: expected %s\n", number, expected ? "a race" : "no race");
      return 1;
    }
    races += expected;
  }
  printf("%ld of %ld programs race\n", races, programs);
}
