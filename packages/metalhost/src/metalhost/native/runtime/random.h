// Marsaglia's xorshift (2003): the same seed gives the same schedule on every machine.
#pragma once
#include <stdint.h>

namespace metalhost {

class Random {
 public:
  explicit Random(uint64_t seed) : state_((seed + 1) * 0x9e3779b97f4a7c15u) {
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

}  // namespace metalhost
