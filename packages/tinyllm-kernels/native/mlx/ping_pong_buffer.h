// Where the halves of blocks put what the next one takes: by turns in two rooms, the last one where
// the result belongs.
#pragma once

#include <vector>

#include "runtime/aligned.h"
#include "mlx/handles.h"

namespace tinyllm {

class Relay {
 public:
  Relay(const std::vector<BlockWeights>& blocks, int64_t bytes, char* y) : y_(y) {
    for (const BlockWeights& block : blocks) left_ += block.second ? 2 : 1;
    for (Aligned<char>& room : rooms_) room = aligned<char>(left_ > 1 ? bytes : 0);
  }

  // Lets the next half put its result where it belongs, and says where that is.
  template <typename Half>
  const void* put(Half half) {
    char* y = --left_ == 0 ? y_ : rooms_[left_ % 2].get();
    half(y);
    return y;
  }

 private:
  char* y_;
  int64_t left_ = 0;
  Aligned<char> rooms_[2];
};

}  // namespace tinyllm
