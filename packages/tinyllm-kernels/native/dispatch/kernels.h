// The kernel table: one function pointer for each kernel, one table for each instruction set.
//
// A kernel computes a part of a task. Parts may run in any order and on any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/plan.h"
#include "matmul/linear.h"
#include "rows/tasks.h"

namespace tinyllm {

struct Kernels {
  const char* name;

  // Converts `count` numbers to floats.
  void (*to_floats)(const void* from, Type type, float* to, int64_t count);

  // Writes the sum of each group of x: `groups` sums of `group` numbers each.
  void (*group_sums)(const float* x, int64_t groups, int group, float* sums);
  // True if x of that type is multiplied with w in integers. `linear_planes` converts rows `first` to
  // `last` of x `M K`; `Planes` begins at row 0. Rows of a prompt are packed 32 at a time, so its
  // arrays hold a multiple of 32 rows.
  bool (*linear_takes_planes)(const Weights&, Type);
  void (*linear_planes)(const float* x, Phase, const Weights&, int64_t first, int64_t last,
                        const Planes&);
  // The number of rows of w that products want interleaved (see matmul/interleave.h), or 0.
  int (*linear_interleaves)(const Weights&);
  // True if prompts of that type are multiplied as pairs of bfloat16 (see matmul/bfloat16/gemm.h).
  // `linear_tiles` packs tiles `first` to `last` of x, 32 rows each.
  bool (*linear_takes_tiles)(Type);
  void (*linear_tiles)(const void* x, int64_t rows, int columns, int64_t first, int64_t last,
                       uint32_t* tiles);
  // Sets `part_rows` and `part_tokens`, the size of the parts. The functions below need both.
  void (*linear_plan)(LinearTask&, int threads);
  int64_t (*linear_parts)(const LinearTask&);  // the number of parts
  LinearRange (*linear_range)(const LinearTask&, int64_t part);
  int64_t (*linear_scratch)(const LinearTask&);  // floats for each thread
  void (*linear_part)(const LinearTask&, int64_t part, float* scratch);
  // Writes rows ids[first..last) of w as numbers of `type`, from row `first` of y on. An id outside
  // of w is read as the last row, as in MLX.
  void (*linear_rows)(const Weights&, const int32_t* ids, int64_t first, int64_t last, void* y,
                      Type type);

  void (*rms_norm_rows)(const RmsNormTask&, int64_t first, int64_t last);
  void (*rope_tokens)(const RopeTask&, int64_t first, int64_t last);
  void (*swiglu_range)(const SwigluTask&, int64_t first, int64_t last);
  void (*quantize_row)(const QuantizeTask&);
  void (*weighted_sums)(const WeightedSumTask&, int64_t first, int64_t last);

  // Of scores `first` to `last` of a row: the largest score, or the first NaN; the k best scores in
  // any order (returns their number, at most k); the sum of their exponentials.
  Scored (*largest_score)(const void* x, Type type, int64_t first, int64_t last);
  int64_t (*best_scores)(const void* x, Type type, int64_t first, int64_t last, int64_t k,
                         Scored* to);
  ExpSum (*score_sum)(const void* x, Type type, int64_t first, int64_t last);

  int64_t (*attention_scratch)(const AttentionTask&);  // floats for each thread
  // The two steps of an `AttentionPlan`: all parts, which write partial results to `partials`, then
  // all merges.
  void (*attention_part)(const AttentionTask&, const AttentionPart&, float* partials,
                         float* scratch);
  void (*attention_merge)(const AttentionTask&, const AttentionMerge&, float* partials);
};

// Returns the tables that this machine can run, fastest first. The last one is "portable".
const std::vector<const Kernels*>& tiers();

// Returns the table that TINYLLM_CPU_ISA names, or the fastest one if the variable is not set. Throws
// std::invalid_argument if the name is not among `tiers()`.
const Kernels& chosen_tier();

}  // namespace tinyllm
