// The half of a block behind attention, of either kind, told once and used for every token.
#pragma once

#include "kernels.h"

namespace tinyllm {

// Rows of x and what they are.
struct Rows {
  const void* x;
  int64_t count;
  Phase phase;
  Type type;
};

class FeedForward {
 public:
  virtual ~FeedForward() = default;

  virtual void run(const Kernels& kernels, const Rows& rows, void* y) const = 0;
};

}  // namespace tinyllm
