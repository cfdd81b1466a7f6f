// What is chosen from rows of scores, each `V`, on all threads: one pass over memory.
#pragma once

#include <cstdint>

#include "dispatch/kernels.h"

namespace tinyllm {

struct ScoreRows {
  const void* x;  // R V
  int64_t rows, columns;
  Type type;
};

// The index of the largest score of each row, of equal ones the first; of what is no number the
// first where there is any.
void argmax(const Kernels& kernels, const ScoreRows& scores, int32_t* indices);

// The k best of each row, R K, in their order: see `ranks_before`. Scores are of the rows' type.
void top_k(const Kernels& kernels, const ScoreRows& scores, int64_t k, void* best,
           int32_t* indices);

// log softmax of the scores at `ids` R K of each row. An id outside of the row is read as the last
// one.
void log_probability(const Kernels& kernels, const ScoreRows& scores, const int32_t* ids,
                     int64_t k, float* y);

}  // namespace tinyllm
