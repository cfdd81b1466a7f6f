// Routing: the experts of each token and their weights.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/moe.h"

namespace tinyllm {

// The rows of one expert after all rows were sorted by expert.
struct ExpertRows {
  int64_t expert, first, count;
};

// For each of `rows` tokens the K experts with the largest softmax scores.
struct Routing {
  // `x` are the normalized rows of the task, rows E.
  Routing(const KernelTable& kernels, const MoeTask& task, const void* x);

  std::vector<float> weights;        // rows K, largest first
  std::vector<int64_t> chosen;       // rows K, the expert of each weight
  std::vector<ExpertRows> experts;   // the experts that were chosen, ascending
  std::vector<int64_t> sorted_rows;  // rows K, the row of each choice after sorting by expert
};

}  // namespace tinyllm
