// The attention half of a transformer block for tokens of many requests, whose keys and values are in
// pages: those of all tokens are written before any of them is read.
#pragma once

#include "attention_block.h"
#include "page_rows.h"

namespace tinyllm {

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
