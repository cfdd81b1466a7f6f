// The MLP of a block for rows that lie in memory.
#pragma once

#include "block_weights.h"
#include "input.h"

namespace tinyllm {

// Computes `y` of the rows at `x`, of which there are as many as of `like`, and gives it.
inline const void* run_mlp(const Kernels& kernels, const MlpWeights& block, const void* x,
                           const Input& like, Type type, char* y) {
  MlpBlockTask task = block.task(x);
  task.rows = like.size / like.shape.back(), task.tokens = tokens_of(like);
  task.y = y;
  task.type = type;
  run(kernels, task);
  return y;
}

}  // namespace tinyllm
