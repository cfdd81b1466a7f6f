// y = x w^T + bias: the matrix product that a projection is.
//
// Two ways to the same sums. For a few rows of x (a token or two) every code is multiplied as it is
// unpacked: memory is what limits, and each weight is used once. For many rows a panel of w is
// unpacked once, and multiplied with blocks of rows that stay in the second-level cache; in bfloat16
// where that is the type of x and the instruction set multiplies it. Either way the sums of a row
// of x do not depend on the rows beside it.
#pragma once

#include <cstdint>

#include "weights.h"

namespace tinyllm {

// Rows of x that are multiplied while w is unpacked, at most; in integers unpacking costs less.
inline constexpr int kFewRows = 3, kFewRowsInIntegers = 16;

struct LinearTask {
  const float* x = nullptr;  // M K
  int64_t rows = 0;          // M
  // For a few rows of x alone: its sums over each group of w, M K/group; and, where the kernels
  // want it, x in integers (see integer_rows.h), M K 2, with a scale for each group.
  const float* sums = nullptr;
  const int8_t* planes = nullptr;
  const float* plane_scales = nullptr;
  // For many rows, where the kernels want it, x in pairs of bfloat16: see bfloat16_tiles.h.
  const uint32_t* tiles = nullptr;
  const Weights* w = nullptr;      // N K
  const void* bias = nullptr;      // N of `type`, or null
  const void* residual = nullptr;  // M N of `type`, added to the product, or null
  void* y = nullptr;               // M N of `type`
  Type type{};
  int64_t part_rows = 0, part_tokens = 0;  // rows of w, and of x, in a part
};

// Whether w is read once for all rows of x.
inline bool is_few(const LinearTask& t) { return t.planes || t.rows <= kFewRows; }

// The numbers of y that a part computes: those of some tokens (rows of x) and some rows of w.
struct LinearRange {
  int64_t first_token, last_token, first_row, last_row;
};

}  // namespace tinyllm
