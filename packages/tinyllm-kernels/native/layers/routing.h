// Which experts a token goes to, and what shares they have.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/moe.h"

namespace tinyllm {

// Choices of tokens that go to one expert, side by side.
struct Run {
  int64_t expert, first, count;
};

struct Routes {
  // Of the rows of a task, normalized.
  Routes(const Kernels& kernels, const MoeBlockTask& task, const void* normal);

  std::vector<float> shares;     // rows K, largest first
  std::vector<int64_t> experts;  // rows K
  std::vector<Run> runs;         // by expert
  std::vector<int64_t> places;   // rows K, among the choices of all runs
};

}  // namespace tinyllm
