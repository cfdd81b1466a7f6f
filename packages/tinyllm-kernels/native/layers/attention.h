// Attention on all threads, and the attention half of a decoder layer.
//
// The half of a layer has three steps:
//
// - Project: n = norm(x). q, k and v are projections of n. The heads of q and k are normalized and
//   rotated.
// - Attend: the new keys and values are written to the cache. The queries attend to the cache.
// - Output: y = x + o(heads side by side). With an output gate, heads are multiplied by
//   sigmoid(gate n).
#pragma once

#include "dispatch/kernel_table.h"
#include "layers/mlp.h"
#include "layers/page_writes.h"
#include "layers/rope_table.h"

namespace tinyllm {

// Computes a whole attention task.
void run_attention(const KernelTable& kernels, const AttentionTask& task);

// An array of rows of D numbers, a row for each head of each token. The numbers of a row are
// contiguous, and the rows have any strides.
struct Heads {
  void* data;
  int64_t strides[3];  // of B, H and L, in numbers
};

// The first step: queries, keys and values of x.
struct ProjectTask {
  const void* x;  // B L E
  int64_t batch, length;
  Phase phase;
  Norm norm;
  Norm q_norm, k_norm;  // without a weight if heads are not normalized
  Weights q, k, v;
  const void* q_bias;  // all three biases may be null
  const void* k_bias;
  const void* v_bias;
  int64_t heads, kv_heads, dim;
  Positions positions;
  RopeSettings rope;
  RopeTable* rope_table;  // shared by the layers of a pass; null for a table of this task alone
  Heads to_q, to_k, to_v;  // output
  Weights gate;            // of the output gate; without rows if there is none
  void* to_gate;           // B L H D, output: null without a gate
  Type type;
};

// All three steps with a dense cache. The new keys and values are written to its rows from `offset`
// on.
struct AttentionLayerTask {
  ProjectTask projection;  // its outputs are set by `run_attention_layer`
  Weights o;
  const void* o_bias;  // or null
  Heads keys, values;  // of the cache, from its first token on
  int64_t offset;      // tokens in the cache before the new ones
  float scale;
  void* y;  // B L E
};

// All three steps for tokens of many requests, whose keys and values are in pages. The new keys and
// values of all tokens are written before any of them is read.
struct PagedAttentionLayerTask {
  ProjectTask projection;  // its outputs are set by `run_paged_attention_layer`
  Weights o;
  const void* o_bias;  // or null
  WritablePages keys, values;
  // As in `AttentionTask`; `slot_mapping` has the slot of each token.
  const int32_t *block_tables, *cu_seqlens_q, *seq_lens, *slot_mapping;
  int64_t requests, block_table_width, pages, page_size, window, decode_queries;
  float scale;
  void* y;  // B L E
};

void run_projections(const KernelTable& kernels, const ProjectTask& task);
void run_attention_layer(const KernelTable& kernels, const AttentionLayerTask& task);
void run_paged_attention_layer(const KernelTable& kernels, const PagedAttentionLayerTask& task);

}  // namespace tinyllm
