// y = x w^T + bias: the matrix product that a projection is.
//
// Two ways to the same sums. For tokens that are decoded every code is multiplied as it is unpacked:
// memory is what limits, and each weight is used a few times. For a prompt a panel of w is unpacked
// once, and multiplied with blocks of tokens that stay in the second-level cache; in bfloat16 where
// that is the type of x and the instruction set multiplies it, else in integers of 16 bits where it
// multiplies these, or in floats. NEON multiplies bytes at best: there prompts go the way of decoded
// tokens, block by block.
//
// The two ways round differently. So which of them a row of x goes never depends on how many rows
// there are, and what becomes of it not on the rows beside it: a request gets the same bits in any
// company.
#pragma once

#include <cstdint>

#include "types.h"

namespace tinyllm {

struct LinearTask {
  const float* x = nullptr;  // M K
  int64_t rows = 0;          // M
  Phase phase{};
  // For codes that are multiplied as they are: the sums of x over each group of w, M K/group; and,
  // where the kernels want it, `Planes`.
  const float* sums = nullptr;
  const int8_t* planes = nullptr;
  const float* plane_scales = nullptr;
  // For a prompt, where the kernels want it, x in pairs of bfloat16: see matmul/bfloat16/gemm.h.
  const uint32_t* tiles = nullptr;
  const Weights* w = nullptr;      // N K
  const void* bias = nullptr;      // N of `type`, or null
  const void* residual = nullptr;  // M N of `type`, added to the product, or null
  void* y = nullptr;               // M N of `type`
  Type type{};
  int64_t part_rows = 0, part_tokens = 0;  // rows of w, and of x, in a part
};

// x in integers, for weights with groups: bytes M K 2, a scale and the sum of x for each group of each
// row. Of decoded tokens row by row (see matmul/integer/gemv.h), of prompts tile by tile where the kernels
// have these (see matmul/integer/gemm.h).
struct Planes {
  int8_t* numbers;
  float *scales, *sums;
};

// Pairs of numbers for which each row of packed tiles has room: whole steps of the matrix unit.
inline int64_t packed_pairs(int columns) { return (columns + 31) / 32 * 16; }

// The numbers of y that a part computes: those of some tokens (rows of x) and some rows of w.
struct LinearRange {
  int64_t first_token, last_token, first_row, last_row;
};

#ifdef TINYLLM_TIER
namespace TINYLLM_TIER {
// Writes the sum of each group of x.
void group_sums(const float* x, int64_t groups, int group, float* sums);
}  // namespace TINYLLM_TIER
#endif

}  // namespace tinyllm
