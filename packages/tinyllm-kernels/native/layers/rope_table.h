// The cosines and sines of a forward pass, computed once for all layers.
#pragma once

#include "dispatch/kernel_table.h"
#include "runtime/aligned.h"

namespace tinyllm {

// The positions of the tokens of a pass.
struct Positions {
  const int32_t* data;  // 1 L or B L
  int64_t count;        // L or B L
  bool are_shared;      // true for 1 L: all rows of the batch have the same positions
};

// Rotary position embedding of the first features of each head.
struct RopeSettings {
  const float* frequencies;  // of each pair, in radians a token
  int64_t pairs;             // half of the features that are rotated
  bool traditional;          // see RopeTask
  float magnitude;
};

// The cosines and sines of one pass, whose layers have equal positions and, in most models, equal
// settings.
class RopeTable {
 public:
  // Returns the table of `positions`: see RopeTableTask. It is computed at the first call, and
  // again if the array of frequencies or the magnitude is not that of the call before. All calls
  // must have equal positions.
  const float* get(const KernelTable& kernels, const Positions& positions,
                   const RopeSettings& rope);

 private:
  const float* frequencies_ = nullptr;
  float magnitude_ = 0;
  Aligned<float> table_;
};

}  // namespace tinyllm
