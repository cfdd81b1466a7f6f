// Who touched a byte, as far as it can still matter: the data race detector's memory.
//
// Two accesses race if they come from different threads, at least one of them writes, and nothing
// orders them. What orders is a barrier: threadgroup_barrier begins a new *epoch* of the group,
// simdgroup_barrier a new *simd epoch* of its simdgroup. So within a group
//
//   different epoch                          ordered
//   same epoch, different simdgroups         not ordered
//   same epoch, same simdgroup               ordered if the simd epochs differ
//
// and between groups nothing is ordered. Lockstep of the lanes of a simdgroup is not assumed.
//
// One AccessSet stands for all reads of a byte, or all writes, or all atomic operations. It need not
// list them. Epochs only grow, so an access that is ordered before the current one is ordered
// before all later ones of the group and may be forgotten; of the others it is enough to know how far
// they are spread: over one thread, one simdgroup, one threadgroup, or several threadgroups.
#pragma once
#include <stdint.h>

#include <initializer_list>

namespace metalhost {

struct Accessor {
  uint32_t group;       // of the grid, counted from 0
  uint32_t epoch;
  uint16_t simd_epoch;
  uint32_t thread;      // its index in the group
  uint32_t pc;          // where, as an offset into the program
};

class AccessSet {
 public:
  // Is any of the accesses unordered with `a`, and by another thread?
  bool races_with(const Accessor& a) const {
    if (spread_ == NOBODY) return false;
    if (spread_ == GROUPS || group_ != a.group) return true;
    if (epoch_ != a.epoch) return false;
    if (spread_ == GROUP || thread_ / 32 != a.thread / 32) return true;
    if (simd_epoch_ != a.simd_epoch) return false;
    return spread_ == SIMDGROUP || thread_ != a.thread;
  }

  void add(const Accessor& a) {
    if (spread_ != NOBODY && group_ != a.group) {
      spread_ = GROUPS;
    } else if (spread_ == NOBODY || (spread_ != GROUPS && epoch_ != a.epoch)) {
      spread_ = THREAD;
    } else if (spread_ < GROUP) {
      if (thread_ / 32 != a.thread / 32) {
        spread_ = GROUP;
      } else if (simd_epoch_ != a.simd_epoch) {
        spread_ = THREAD;
      } else if (thread_ != a.thread) {
        spread_ = SIMDGROUP;
      }
    }
    group_ = a.group, epoch_ = a.epoch, simd_epoch_ = a.simd_epoch;
    thread_ = a.thread, pc_ = a.pc;
  }

  bool empty() const { return spread_ == NOBODY; }

  // The last one, for the report.
  uint32_t group() const { return group_; }
  uint32_t thread() const { return thread_; }
  uint32_t pc() const { return pc_; }

 private:
  enum Spread : uint32_t { NOBODY, THREAD, SIMDGROUP, GROUP, GROUPS };  // NOBODY is zeroed memory

  uint32_t group_, epoch_, pc_;
  uint32_t simd_epoch_ : 16, thread_ : 10, spread_ : 3;
};
static_assert(sizeof(AccessSet) == 16);

// All that is known of one byte.
struct Shadow {
  AccessSet reads, writes, atomics;

  bool written() const { return !writes.empty() || !atomics.empty(); }

  // Threadgroup memory is another one in each group: what an earlier group did there is no matter.
  bool from_before(uint32_t group) const {
    for (const AccessSet* set : {&reads, &writes, &atomics}) {
      if (!set->empty() && set->group() != group) return true;
    }
    return false;
  }
};

}  // namespace metalhost
