// The kernel table: the functions of one instruction set.
//
// A task is cut into parts, which are computed in any order and by any thread. A table's functions
// have no state.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/plan.h"
#include "matmul/linear.h"
#include "recurrent/tasks.h"
#include "rows/tasks.h"

namespace tinyllm {

struct KernelTable {
  const char* name;

  // Converts `count` numbers of type float32, float16 or bfloat16 to float32.
  void (*to_floats)(const void* from, Type type, float* to, int64_t count);

  // Linear layers. First the kernel that multiplies w by `tokens` rows of x, which are of `type`.
  LinearKernel (*linear_kernel)(const Weights&, Type type, Phase, int64_t tokens);

  // The layouts of x that the kernels read, made once for all products with x.

  // Writes the sum of each of `groups` groups of x.
  void (*group_sums)(const float* x, int64_t groups, int group, float* sums);
  // Quantizes a range of x `M K`: some tokens with all groups, or all tokens with some groups. For
  // prefill its first token is a multiple of 32.
  void (*linear_quantize_x)(LinearKernel, const XRange&, const Weights&, const QuantizedX&);
  // The number of rows of w that should be interleaved (see matmul/interleave.h), or 0.
  int (*linear_interleaved_rows)(const Weights&);
  // True if prefill reads x in bfloat16 as it lies in memory, unpacked. `type` is the type of x.
  bool (*linear_reads_x_unpacked)(Type type);
  // The number of words of a row of packed x.
  int64_t (*linear_packed_words)(Type type, int columns);
  // Packs tiles `first` to `last` of kTokenTile rows of x `M K`.
  void (*linear_pack_x)(const void* x, Type type, int64_t rows, int columns, int64_t first,
                        int64_t last, uint32_t* packed);

  // Sets `part_rows` and `part_tokens` of a task.
  void (*linear_plan)(LinearTask&, int64_t parts);
  int64_t (*linear_part_count)(const LinearTask&);
  LinearRange (*linear_part_range)(const LinearTask&, int64_t part);
  int64_t (*linear_scratch)(const LinearTask&);  // floats of scratch memory for each thread
  void (*linear_part)(const LinearTask&, int64_t part, float* scratch);

  // Writes rows ids[first] to ids[last - 1] of w as numbers of `type`, to rows `first` to `last` of
  // y. An id outside of w is read as the last row, as in MLX.
  void (*embedding_rows)(const Weights&, const int32_t* ids, int64_t first, int64_t last, void* y,
                         Type type);

  // Row kernels, over a range of their rows, tokens or numbers: see rows/tasks.h.
  void (*rms_norm_rows)(const RmsNormTask&, int64_t first, int64_t last);
  void (*rope_table_rows)(const RopeTableTask&, int64_t first, int64_t last);
  void (*rope_tokens)(const RopeTask&, int64_t first, int64_t last);
  void (*swiglu_range)(const SwigluTask&, int64_t first, int64_t last);
  void (*output_gate_range)(const OutputGateTask&, int64_t first, int64_t last);
  void (*quantize_row)(const QuantizeTask&);
  void (*weighted_sums)(const WeightedSumTask&, int64_t first, int64_t last);

  // Functions of the scores `first` to `last` of a row x.

  // The largest score, of equal scores the first. The first NaN counts as the largest.
  Scored (*argmax_range)(const void* x, Type type, int64_t first, int64_t last);
  // Writes the k best scores (see `ranks_before`) in any order. Returns their number, which is less
  // than k in shorter ranges.
  int64_t (*top_k_range)(const void* x, Type type, int64_t first, int64_t last, int64_t k,
                         Scored* to);
  // The sum of e^(x - largest): see `ExpSum`.
  ExpSum (*exp_sum_range)(const void* x, Type type, int64_t first, int64_t last);

  // Attention. All parts of an `AttentionPlan` are computed, then all merges. `partials` has the
  // `partial_floats` of the plan.
  int64_t (*attention_query_tile_rows)(const AttentionTask&);  // rows of a query tile, at most
  int64_t (*attention_scratch)(const AttentionTask&);  // floats of scratch memory for each thread
  void (*attention_part)(const AttentionTask&, const AttentionPlan&, int64_t part, float* partials,
                         float* scratch);
  void (*attention_merge)(const AttentionTask&, const AttentionMerge&, float* partials);

  // Recurrent layers. A part computes all tokens of one sequence: some channels, or the value heads
  // of one key head. `scratch` has the floats that the function before it states.
  int64_t (*causal_conv_scratch)(const CausalConvTask&, int64_t channels);
  void (*causal_conv_part)(const CausalConvTask&, int64_t sequence, int64_t first_channel,
                           int64_t last_channel, float* scratch);
  int64_t (*gated_delta_scratch)(const GatedDeltaTask&);
  void (*gated_delta_part)(const GatedDeltaTask&, int64_t sequence, int64_t key_head,
                           float* scratch);
  void (*gated_norm_rows)(const GatedNormTask&, int64_t first, int64_t last);
  int64_t (*mixer_scratch)(const MixerTask&);
  void (*mixer_part)(const MixerTask&, int64_t sequence, int64_t key_head, float* scratch);
};

// The tables that this machine can run, the fastest first. "portable" is always the last. Throws
// std::invalid_argument if the build left out the fastest one.
const std::vector<const KernelTable*>& kernel_tables();

// The table that the environment variable TINYLLM_CPU_ISA names, or else the fastest one. Throws
// std::invalid_argument if this machine cannot run the named one.
const KernelTable& chosen_kernels();

// The name of the fastest instruction set of the processor, which the build may have left out.
const char* fastest_instruction_set();

}  // namespace tinyllm
