#include "fibers/schedule.h"

namespace metalhost {

void Schedule::order_groups(uint32_t* groups, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) groups[i] = i;
  if (!shuffled_) return;
  for (uint32_t i = count; i > 1; --i) {
    uint32_t other = random_.below(i), group = groups[i - 1];
    groups[i - 1] = groups[other];
    groups[other] = group;
  }
}

void Schedule::begin_group() {
  ready_simdgroups_ = 0;
  for (uint32_t& lanes : ready_) lanes = 0;
  if (!shuffled_) return;
  policy_ = Policy(1 + random_.below(3));
  for (uint32_t& priority : priority_) priority = random_.below(1 << 16);
}

void Schedule::make_ready(uint32_t simdgroup, uint32_t lanes) {
  ready_[simdgroup] |= lanes;
  if (lanes) ready_simdgroups_ |= 1u << simdgroup;
}

uint32_t Schedule::random_bit(uint32_t bits) {
  for (uint32_t skip = random_.below(uint32_t(__builtin_popcount(bits))); skip; --skip) {
    bits &= bits - 1;
  }
  return uint32_t(__builtin_ctz(bits));
}

uint32_t Schedule::pick_simdgroup() {
  if (policy_ == Policy::NATURAL) return uint32_t(__builtin_ctz(ready_simdgroups_));
  if (policy_ == Policy::UNIFORM) return random_bit(ready_simdgroups_);
  uint32_t best = uint32_t(__builtin_ctz(ready_simdgroups_));
  for (uint32_t rest = ready_simdgroups_; rest; rest &= rest - 1) {
    uint32_t simdgroup = uint32_t(__builtin_ctz(rest));
    if (priority_[simdgroup] > priority_[best]) best = simdgroup;
  }
  if (policy_ == Policy::DRIFTING && random_.below(16) == 0) {
    priority_[best] = random_.below(1 << 16);
  }
  return best;
}

uint32_t Schedule::next() {
  uint32_t simdgroup = pick_simdgroup();
  uint32_t& lanes = ready_[simdgroup];
  uint32_t lane;
  switch (policy_) {
    case Policy::NATURAL: lane = uint32_t(__builtin_ctz(lanes)); break;
    case Policy::BACKWARD: lane = LANES - 1 - uint32_t(__builtin_clz(lanes)); break;
    default: lane = random_bit(lanes);
  }
  lanes &= ~(1u << lane);
  if (!lanes) ready_simdgroups_ &= ~(1u << simdgroup);
  return simdgroup * LANES + lane;
}

}  // namespace metalhost
