// Which thread runs next.
//
// Metal promises no order, so a kernel must be right under any. Seed 0 is the natural one: lanes and
// simdgroups in turn. Any other seed picks at random, in one of three ways for each group, since
// different mistakes show under different skews.
#pragma once
#include <stdint.h>

#include "abi.h"
#include "random.h"

namespace metalhost {

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : random_(seed), shuffled_(seed != 0) {}

  // Puts the numbers of the groups into the order in which they run.
  void order_groups(uint32_t* groups, uint32_t count);

  // A new group begins; none of its threads is ready.
  void begin_group();

  void make_ready(uint32_t simdgroup, uint32_t lanes);
  bool anyone_ready() const { return ready_simdgroups_ != 0; }

  // Takes one of the threads that are ready, and gives its index in the group.
  uint32_t next();

 private:
  enum class Policy {
    NATURAL,   // the first lane of the first simdgroup
    UNIFORM,   // any lane of any simdgroup
    BACKWARD,  // one simdgroup as far as it comes, its last lanes first
    DRIFTING,  // one simdgroup far ahead of the others, now and then another one
  };

  uint32_t pick_simdgroup();
  uint32_t any_bit(uint32_t bits);

  Random random_;
  bool shuffled_;
  Policy policy_ = Policy::NATURAL;
  uint32_t ready_simdgroups_ = 0;
  uint32_t ready_[LANES] = {};     // lanes, by simdgroup
  uint32_t priority_[LANES] = {};  // by simdgroup
};

}  // namespace metalhost
