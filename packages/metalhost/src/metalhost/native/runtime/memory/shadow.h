// Shadow memory: the accesses to each byte, which the race detector compares.
//
// Two accesses race if they come from different threads, at least one of them is a write, at least
// one is not atomic, and no barrier orders them. threadgroup_barrier begins a new *epoch* of the
// group. simdgroup_barrier begins a new *simd epoch* of its simdgroup. Within a group:
//
//   different epochs                         ordered
//   same epoch, different simdgroups         not ordered
//   same epoch, same simdgroup               ordered if the simd epochs differ
//
// Accesses of different groups are never ordered. Lanes of a simdgroup are not assumed to run in
// lockstep.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <initializer_list>

namespace metalhost {

// Thread and epochs of an access.
struct Accessor {
  uint32_t group;       // number of the group in the grid
  uint32_t epoch;
  uint16_t simd_epoch;
  uint32_t thread;      // index in the group
  uint32_t pc;          // program counter, as an offset into the program
};

// All accesses of one kind to a byte, in 16 bytes.
//
// The set need not list its accesses. Epochs only grow, so an access that is ordered before the
// current access is ordered before all later accesses of the group, and is dropped. The remaining
// accesses are known to be unordered. For them the set stores the last access and the extent: one
// thread, one simdgroup, one group or several groups.
class AccessSet {
 public:
  // Returns true if an access in the set is by another thread and not ordered with `a`.
  bool races_with(const Accessor& a) const {
    if (extent_ == EMPTY) return false;
    if (extent_ == SEVERAL_GROUPS || group_ != a.group) return true;
    if (epoch_ != a.epoch) return false;
    if (extent_ == GROUP || thread_ / 32 != a.thread / 32) return true;
    if (simd_epoch_ != a.simd_epoch) return false;
    return extent_ == SIMDGROUP || thread_ != a.thread;
  }

  // Returns true if the last access in the set is by another thread and not ordered with `a`.
  bool last_races_with(const Accessor& a) const {
    AccessSet last = *this;
    if (extent_ != EMPTY) last.extent_ = THREAD;
    return last.races_with(a);
  }

  void add(const Accessor& a) {
    if (extent_ != EMPTY && group_ != a.group) {
      extent_ = SEVERAL_GROUPS;
    } else if (extent_ == EMPTY || (extent_ != SEVERAL_GROUPS && epoch_ != a.epoch)) {
      extent_ = THREAD;
    } else if (extent_ < GROUP) {
      if (thread_ / 32 != a.thread / 32) {
        extent_ = GROUP;
      } else if (simd_epoch_ != a.simd_epoch) {
        extent_ = THREAD;
      } else if (thread_ != a.thread) {
        extent_ = SIMDGROUP;
      }
    }
    group_ = a.group, epoch_ = a.epoch, simd_epoch_ = a.simd_epoch;
    thread_ = a.thread, pc_ = a.pc;
  }

  bool empty() const { return extent_ == EMPTY; }
  bool in_several_groups() const { return extent_ == SEVERAL_GROUPS; }

  // Last access, for the report.
  uint32_t group() const { return group_; }
  uint32_t thread() const { return thread_; }
  uint32_t pc() const { return pc_; }

 private:
  // EMPTY is 0, so that zeroed memory has no accesses.
  enum Extent : uint32_t { EMPTY, THREAD, SIMDGROUP, GROUP, SEVERAL_GROUPS };

  uint32_t group_, epoch_, pc_;
  uint32_t simd_epoch_ : 16, thread_ : 10, extent_ : 3;
};
static_assert(sizeof(AccessSet) == 16);

// Shadow of one byte.
struct Shadow {
  AccessSet reads, writes, atomic_loads, atomics;  // `atomics` are the atomic stores and updates

  bool written() const { return !writes.empty() || !atomics.empty(); }

  // Returns true if a group other than `group` made the accesses. Threadgroup memory is reused, so
  // the accesses of earlier groups do not count.
  bool belongs_to_other_group(uint32_t group) const {
    for (const AccessSet* set : {&reads, &writes, &atomic_loads, &atomics}) {
      if (!set->empty() && set->group() != group) return true;
    }
    return false;
  }
};

// Fills uninitialized memory with 0xffb5. This pattern is NaN as a float, half or bfloat, and an
// index far out of bounds as an integer.
inline void poison(void* memory, size_t bytes) {
  unsigned char* p = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i < bytes; ++i) p[i] = i % 2 ? 0xff : 0xb5;
}

}  // namespace metalhost
