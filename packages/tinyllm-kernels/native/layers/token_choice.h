// Token choice from rows of logits `R V`, on all threads, in one pass over memory.
#pragma once

#include <cstdint>

#include "dispatch/kernels.h"

namespace tinyllm {

struct ScoreRows {
  const void* x;  // R V
  int64_t rows, columns;
  Type type;
};

// Writes the index of the largest score of each row. The lowest index wins a tie. In a row with NaN
// the first NaN is the largest.
void argmax(const Kernels& kernels, const ScoreRows& scores, int32_t* indices);

// Writes the k largest scores of each row and their indices, both R K, in the order of `ranks_before`.
// The scores keep their type.
void top_k(const Kernels& kernels, const ScoreRows& scores, int64_t k, void* best,
           int32_t* indices);

// Writes log softmax(x) at `ids`, R K. An id outside of the row is read as the last one.
void log_probability(const Kernels& kernels, const ScoreRows& scores, const int32_t* ids, int64_t k,
                     float* y);

}  // namespace tinyllm
