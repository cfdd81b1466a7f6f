// Where the halves of blocks put what the next one takes: by turns in two rooms, the last one where
// the result belongs.
#pragma once

#include <vector>

#include "aligned.h"
#include "block_weights.h"

namespace tinyllm {

class Relay {
 public:
  Relay(const std::vector<BlockWeights>& blocks, int64_t bytes, char* y) : y_(y) {
    for (const BlockWeights& block : blocks) left_ += block.mlp ? 2 : 1;
    for (Aligned<char>& room : rooms_) room = aligned<char>(left_ > 1 ? bytes : 0);
  }

  // For the next half.
  char* next() { return --left_ == 0 ? y_ : rooms_[left_ % 2].get(); }

 private:
  char* y_;
  int64_t left_ = 0;
  Aligned<char> rooms_[2];
};

}  // namespace tinyllm
