// The kernels of one instruction set: what `TINYLLM_TIER` names, as a table of functions.
//
// A task is cut into parts, which are done in any order and by any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/plan.h"
#include "matmul/linear.h"
#include "rows/tasks.h"

namespace tinyllm {

struct Kernels {
  const char* name;

  // Numbers of any type to floats.
  void (*to_floats)(const void* from, Type type, float* to, int64_t count);

  // Sums of x over each group of w.
  void (*group_sums)(const float* x, int64_t groups, int group, float* sums);
  // Whether rows of x are multiplied in integers, and rows `first` to `last` of x `M K` as those, for
  // which `Planes` has room from the first row on. Prompts are packed 32 rows at a time, for which
  // there is room also where there are fewer.
  bool (*linear_takes_planes)(const Weights&, Type);
  void (*linear_planes)(const float* x, Phase, const Weights&, int64_t first, int64_t last,
                        const Planes&);
  // How many rows of w products want side by side (see matmul/interleave.h); 0 is none.
  int (*linear_interleaves)(const Weights&);
  // Whether prompts are multiplied in pairs of bfloat16, and x as those: see
  // matmul/bfloat16/gemm.h. Tiles are of 32 rows; those of `first` to `last` are packed.
  bool (*linear_takes_tiles)(Type);
  void (*linear_tiles)(const void* x, int64_t rows, int columns, int64_t first, int64_t last,
                       uint32_t* tiles);
  // Cuts a task into parts: what `part_rows` and `part_tokens` should be.
  void (*linear_plan)(LinearTask&, int threads);
  int64_t (*linear_parts)(const LinearTask&);
  LinearRange (*linear_range)(const LinearTask&, int64_t part);
  int64_t (*linear_scratch)(const LinearTask&);  // floats that each thread needs
  void (*linear_part)(const LinearTask&, int64_t part, float* scratch);
  // Rows ids[first..last] of w, as numbers of `type` from row `first` of y on. A row that w has
  // not is the last one, as MLX has it.
  void (*linear_rows)(const Weights&, const int32_t* ids, int64_t first, int64_t last, void* y,
                      Type type);

  void (*rms_norm_rows)(const RmsNormTask&, int64_t first, int64_t last);
  void (*rope_tokens)(const RopeTask&, int64_t first, int64_t last);
  void (*swiglu_range)(const SwigluTask&, int64_t first, int64_t last);
  void (*quantize_row)(const QuantizeTask&);
  void (*weighted_sums)(const WeightedSumTask&, int64_t first, int64_t last);

  // Of scores `first` to `last` of a row: the largest (or the first that is no number), the k best
  // in any order, of which it tells how many there are, and their sum.
  Scored (*largest_score)(const void* x, Type type, int64_t first, int64_t last);
  int64_t (*best_scores)(const void* x, Type type, int64_t first, int64_t last, int64_t k,
                         Scored* to);
  ExpSum (*score_sum)(const void* x, Type type, int64_t first, int64_t last);

  int64_t (*attention_scratch)(const AttentionTask&);  // floats that each thread needs
  // Parts of an `AttentionPlan`, which leave what is not final in `partials`; then its merges.
  void (*attention_part)(const AttentionTask&, const AttentionPart&, float* partials,
                         float* scratch);
  void (*attention_merge)(const AttentionTask&, const AttentionMerge&, float* partials);
};

// Those that this machine can run, the fastest first; "portable" is always the last.
const std::vector<const Kernels*>& tiers();

// The first of them, or the one that TINYLLM_CPU_ISA names. Throws std::invalid_argument if that is
// none of them.
const Kernels& chosen_tier();

}  // namespace tinyllm
