// Order in which threads and groups run.
//
// Metal promises no order, so a kernel must be correct in any order. Seed 0 is the natural order:
// simdgroups and lanes by their indices. Every other seed selects one of three random policies for
// each group, because different faults need different orders to show.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace metalhost {

// Marsaglia's xorshift generator (2003). A seed gives the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9e3779b97f4a7c15u) {
    if (state_ == 0) state_ = 1;  // the generator never leaves the state 0
    for (int i = 0; i < 4; ++i) next();
  }
  uint32_t below(uint32_t n) { return uint32_t(next() >> 16) % n; }

 private:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  uint64_t state_;
};

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : random_(seed), shuffled_(seed != 0) {}

  // Writes the numbers 0 to count - 1 in the order in which the groups run.
  void order_groups(uint32_t* groups, uint32_t count);

  // Starts a new group, in which no thread is ready.
  void begin_group();

  void make_ready(uint32_t simdgroup, uint32_t lanes);
  bool any_ready() const { return ready_simdgroups_ != 0; }

  // Returns true at random, and never for seed 0.
  bool weak_exchange_fails() { return shuffled_ && random_.below(4) == 0; }

  // Removes one ready thread, and returns its index in the group.
  uint32_t next();

 private:
  enum class Policy {
    NATURAL,   // first lane of the first simdgroup
    UNIFORM,   // random lane of a random simdgroup
    BACKWARD,  // one simdgroup until it has no ready lane, last lane first
    DRIFTING,  // one simdgroup ahead of the others, with random changes of the simdgroup
  };

  uint32_t pick_simdgroup();
  uint32_t random_bit(uint32_t bits);

  Random random_;
  bool shuffled_;
  Policy policy_ = Policy::NATURAL;
  uint32_t ready_simdgroups_ = 0;  // bit i is set if simdgroup i has a ready lane
  uint32_t ready_[LANES] = {};     // ready lanes of each simdgroup, as bits
  uint32_t priority_[LANES] = {};  // priority of each simdgroup
};

}  // namespace metalhost
