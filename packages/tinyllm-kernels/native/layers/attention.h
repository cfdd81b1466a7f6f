// A whole attention, on all threads: for whoever has a task and no wish to cut it up.
#pragma once

#include "dispatch/kernels.h"
#include "layers/mlp.h"
#include "layers/page_writes.h"

namespace tinyllm {

void run_attention(const Kernels& kernels, const AttentionTask& task);

// --- attention_block.h
// The attention half of a transformer block, in three steps:
//
//   inputs   n = norm(x); q, k, v = their projections of n, q and k normalized by head and turned
//   attend   the new keys and values stand in the cache by now, and the queries see all of it
//   output   y = x + o(heads side by side)

// Rows of D numbers for each head of each token, at any distance.
struct Heads {
  void* data;
  int64_t strides[3];  // of B, H and L, in numbers
};

struct AttentionInputsTask {
  const void* x;  // B L E
  int64_t batch, length;
  Phase phase;
  Norm norm, q_norm, k_norm;
  Weights q, k, v;
  const void* q_bias;  // or null, as all biases
  const void* k_bias;
  const void* v_bias;
  int64_t heads, kv_heads, dim;
  const int32_t* positions;  // 1 L or B L
  bool one_row;              // the positions are those of every row
  const float* frequencies;  // D/2, in radians a token
  bool traditional;
  float magnitude;
  Heads to_q, to_k, to_v;  // where the results go
  Type type;
};

struct AttentionBlockTask {
  AttentionInputsTask inputs;
  Weights o;
  const void* o_bias;
  const void* residual;  // x of the inputs, or null where it is not added
  int64_t offset;  // tokens of the cache before those to which to_k and to_v of the inputs point
  float scale;
  void* y;  // B L E
};

void run(const Kernels& kernels, const AttentionInputsTask& task);
void run(const Kernels& kernels, const AttentionBlockTask& task);

// --- paged_attention_block.h
// The attention half of a transformer block for tokens of many requests, whose keys and values are in
// pages: those of all tokens are written before any of them is read.

struct PagedAttentionBlockTask {
  AttentionInputsTask inputs;  // but for where the results go
  Weights o;
  const void* o_bias;    // or null
  const void* residual;  // as in `AttentionBlockTask`
  PageRows keys, values;
  // As in `AttentionTask`; and the slot of each token.
  const int32_t *block_table, *query_starts, *context_lengths, *slots;
  int64_t requests, blocks, pages, page, window, decode_queries;
  float scale;
  void* y;  // B L E
};

void run(const Kernels& kernels, const PagedAttentionBlockTask& task);

}  // namespace tinyllm
