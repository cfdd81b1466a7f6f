// Tasks of the row kernels: RMSNorm, RoPE, SwiGLU, output gate, quantization, weighted sums and token scores.
//
// A task points to memory that its caller owns. Kernels compute in float32 and round each result
// once, unless stated otherwise. All results except `ExpSum` are independent of the ranges into
// which the caller cuts a task.
#pragma once

#include <cstdint>

#include "types.h"

namespace tinyllm {

// y = x / sqrt(mean(x^2) + eps) * weight, row by row. The quotient is rounded to `type` before the
// weight multiplies it.
struct RmsNormTask {
  const void* x;       // rows D
  const void* weight;  // D
  void* y;             // rows D; it may be x
  int64_t width;       // D
  float eps;
  Type type;             // of x, weight and y
  int64_t y_stride = 0;  // numbers from a row of y to the next, if not D
};

// The cosines and sines of the angles position * frequency.
struct RopeTableTask {
  const int32_t* positions;
  const float* frequencies;  // in radians a token
  int64_t pairs;             // the number of frequencies
  float magnitude;           // factor of the result
  float* table;              // for each position the cosines of all pairs, then the sines
};

// Rotary position embedding: rotates each pair of features by the angles of its position. With a
// weight, RMSNorm of the heads comes first, with the results of RmsNormTask.
struct RopeTask {
  const void* x;         // B L H D; only the rows of D numbers must be contiguous
  int64_t strides[3];    // of B, L and H, in numbers
  void* y;               // B L H D; it may be x
  int64_t y_strides[3];  // of B, L and H, in numbers
  const float* table;    // of the positions 1 L or B L: see RopeTableTask
  int64_t length, heads, dim;
  int64_t pairs;          // the number of pairs, of the first features; the others are not changed
  bool shares_positions;  // positions are 1 L: all rows of the batch have the same positions
  bool traditional;       // feature pairs are (2i, 2i + 1), otherwise (i, i + pairs)
  Type type;              // of x, y and the weight
  const void* norm_weight = nullptr;  // D, or null
  float eps = 0;                      // of RMSNorm
};

// y = silu(gate) * up, number by number, with silu(x) = x sigmoid(x).
struct SwigluTask {
  const void* gate;
  const void* up;
  void* y;    // it may be gate or up
  Type type;  // of gate, up and y
};

// y = x * sigmoid(gate), number by number.
struct OutputGateTask {
  const void* x;
  const void* gate;
  void* y;    // it may be x
  Type type;  // of x, gate and y
};

// Affine quantization of one row of a KV cache to codes of 4 or 8 bits, packed as MLX packs them.
struct QuantizeTask {
  const void* row;  // D numbers
  void* codes;      // D bits/8 bytes
  void* scales;     // D/group numbers
  void* biases;     // D/group numbers
  int64_t dim;      // D, a multiple of the group
  int bits, group;  // group: 32, 64 or 128 numbers share a scale and a bias
  Type type;        // of the row, the scales and the biases
};

// y[n] = residual[n] + sum over k of weights[n, k] * rows[indices[n, k]]: the outputs of the
// experts of a token, combined. The order of the sum is that of k, and the residual is added last.
struct WeightedSumTask {
  const void* rows;        // any number of rows of `width` numbers
  const int64_t* indices;  // N K
  const float* weights;    // N K
  int64_t count;           // K
  int64_t width;
  const void* residual;  // N width
  void* y;               // N width
  Type type;             // of rows, residual and y
};

// A score of a row of scores, such as a logit of a vocabulary of 150,000 tokens.
struct Scored {
  float score;
  int32_t index;  // in the row
};

// Returns true if a ranks before b. The larger score is first, of equal scores the lower
// index, and NaN is last.
[[gnu::always_inline]] inline bool ranks_before(const Scored& a, const Scored& b) {
  const bool a_is_number = a.score == a.score, b_is_number = b.score == b.score;
  if (a_is_number != b_is_number) return a_is_number;
  if (a_is_number && a.score != b.score) return a.score > b.score;
  return a.index < b.index;
}

// The sum of e^(x - largest) over some scores. `largest` is 0 if all of them are -infinity.
struct ExpSum {
  float largest, sum;
};

}  // namespace tinyllm
