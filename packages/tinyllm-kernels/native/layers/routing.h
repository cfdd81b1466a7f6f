// Routing: the experts of each token and their weights.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/moe.h"
#include "layers/products/operand.h"

namespace tinyllm {

// The rows of one expert after all rows were sorted by expert.
struct ExpertRows {
  int64_t expert, first, count;
};

// For each of `rows` tokens the K experts with the largest softmax scores. With a shared expert a
// token has T = K + 1 terms, else T = K.
struct Routing {
  // `x` are the normalized rows of the task, rows E, and `tokens` their operand.
  Routing(const KernelTable& kernels, const MoeTask& task, const void* x, Operand& tokens);

  std::vector<ExpertRows> experts;  // the experts that were chosen, ascending
  // `rows T`: the K routing weights of each token, largest first, and the shared expert's weight.
  std::vector<float> weights;
  // `rows T`: the row of each term. The first rows x K rows are sorted by expert, and those of the
  // shared expert follow.
  std::vector<int64_t> sorted_rows;
};

}  // namespace tinyllm
