// Token choice from rows of logits `R V`, on all threads, in one pass over memory.
#pragma once

#include <cstdint>

#include "dispatch/kernel_table.h"

namespace tinyllm {

// Rows of scores, such as logits. It owns no memory.
struct ScoreRows {
  const void* x;  // R V
  int64_t rows, columns;
  Type type;
};

// Writes the index of the largest score of each row. The lowest index wins a tie. In a row with NaN
// the first NaN is the largest.
void argmax(const KernelTable& kernels, const ScoreRows& scores, int32_t* indices);

// Writes the k largest scores of each row and their indices, both R K, in the order of
// `ranks_before`. The scores keep their type. k is at most V.
void top_k(const KernelTable& kernels, const ScoreRows& scores, int64_t k, void* best,
           int32_t* indices);

// Writes log softmax(x) at `ids`, R K, to y, R K. An id outside of 0..V-1 is read as V-1.
void log_probability(const KernelTable& kernels, const ScoreRows& scores, const int32_t* ids,
                     int64_t k, float* y);

}  // namespace tinyllm
