// The kernels of one instruction set: what `TINYLLM_TIER` names, as a table of functions.
//
// A task is cut into parts, which are done in any order and by any thread.
#pragma once

#include <cstdint>

#include "attention.h"
#include "linear.h"
#include "rms_norm.h"
#include "rope.h"
#include "swiglu.h"

namespace tinyllm {

struct Kernels {
  const char* name;

  // Numbers of any type to floats.
  void (*to_floats)(const void* from, Type type, float* to, int64_t count);

  // For a few rows of x: its sums over each group of w.
  void (*group_sums)(const float* x, int64_t groups, int group, float* sums);
  // Whether a few rows of x are multiplied in integers, and x as those: see integer_rows.h.
  bool (*linear_takes_planes)(const Weights&, Type);
  void (*linear_planes)(const float* x, int64_t count, const Weights&, int8_t* planes,
                        float* scales);
  int64_t (*linear_parts)(const LinearTask&);
  int64_t (*linear_scratch)(const LinearTask&);  // floats that each thread needs
  void (*linear_part)(const LinearTask&, int64_t part, float* scratch);

  void (*rms_norm_rows)(const RmsNormTask&, int64_t first, int64_t last);
  void (*rope_tokens)(const RopeTask&, int64_t first, int64_t last);
  void (*swiglu_range)(const SwigluTask&, int64_t first, int64_t last);

  int64_t (*attention_scratch)(const AttentionTask&);  // floats that each thread needs
  void (*attention_row)(const AttentionTask&, int64_t row, float* scratch);
};

#ifdef TINYLLM_TIER
namespace TINYLLM_TIER {
void to_floats(const void* from, Type type, float* to, int64_t count);
void group_sums(const float* x, int64_t groups, int group, float* sums);
bool linear_takes_planes(const Weights&, Type);
void linear_planes(const float* x, int64_t count, const Weights&, int8_t* planes, float* scales);
int64_t linear_parts(const LinearTask&);
int64_t linear_scratch(const LinearTask&);
void linear_part(const LinearTask&, int64_t part, float* scratch);
void rms_norm_rows(const RmsNormTask&, int64_t first, int64_t last);
void rope_tokens(const RopeTask&, int64_t first, int64_t last);
void swiglu_range(const SwigluTask&, int64_t first, int64_t last);
int64_t attention_scratch(const AttentionTask&);
void attention_row(const AttentionTask&, int64_t row, float* scratch);
}  // namespace TINYLLM_TIER
#endif

}  // namespace tinyllm
