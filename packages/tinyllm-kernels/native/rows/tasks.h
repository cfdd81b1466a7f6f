// y = x / sqrt(mean(x^2) + eps) * weight, row by row.
#pragma once

#include <cstdint>

#include "types.h"

namespace tinyllm {

struct RmsNormTask {
  const void* x;       // rows D
  const void* weight;  // D
  void* y;             // rows D
  int64_t width;       // D
  float eps;
  Type type;  // of all three
};

// --- rope.h
// Rotary positions: each pair of features turns by position * frequency.

struct RopeTask {
  const void* x;             // B L H D, rows of D at any distance
  int64_t strides[3];        // of B, L and H, in numbers
  void* y;                   // B L H D, too; it may be x
  int64_t y_strides[3];
  const int32_t* positions;  // 1 L or B L
  const float* frequencies;  // D/2, in radians a token
  int64_t length, heads, dim;
  bool one_row;      // the positions are those of every row
  bool traditional;  // pairs are neighbors, otherwise i and i + D/2
  float magnitude;   // multiplies what is turned
  Type type;
};

// --- swiglu.h
// y = gate sigmoid(gate) up, number by number.

struct SwigluTask {
  const void* gate;
  const void* up;
  void* y;
  Type type;  // of all three
};

// --- quantize_rows.h
// Rows of numbers to codes of 4 or 8 bits, as MLX packs them: what a cache does with new tokens.

struct QuantizeTask {
  const void* row;  // D numbers
  void* codes;      // D bits/8 bytes
  void* scales;     // D/group numbers, as the biases
  void* biases;
  int64_t dim;
  int bits, group;
  Type type;  // of the row, the scales and the biases
};

// --- weighted_sum.h
// y[n] = residual[n] + sum over k of share[n, k] * row[place[n, k]]: what experts say, put together.

struct WeightedSumTask {
  const void* rows;       // of `width` numbers
  const int64_t* places;  // N K, which of the rows
  const float* shares;    // N K
  int64_t count, width;   // K
  const void* residual;   // N width, or null
  void* y;                // N width
  Type type;              // of rows, residual and y
};

// --- scores.h
// Stretches of a row of scores, of which a vocabulary has 150,000: the best of them, and their sum.

struct Scored {
  float score;
  int32_t index;
};

// Whether a ranks before b: the larger score, of equal ones the first. What is no number comes last.
inline bool before(const Scored& a, const Scored& b) {
  const bool a_counts = a.score == a.score, b_counts = b.score == b.score;
  if (a_counts != b_counts) return a_counts;
  if (a_counts && a.score != b.score) return a.score > b.score;
  return a.index < b.index;
}

// The sum of e^(x - largest).
struct ExpSum {
  float largest, sum;
};

}  // namespace tinyllm
