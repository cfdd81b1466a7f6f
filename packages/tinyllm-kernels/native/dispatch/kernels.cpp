// The kernel table of the instruction set that this file is compiled for.
#include "dispatch/kernels.h"

#include <type_traits>

namespace tinyllm::TINYLLM_TIER {

#define TINYLLM_KERNELS(KERNEL)                                                        \
  KERNEL(to_floats)                                                                    \
  KERNEL(group_sums)                                                                   \
  KERNEL(linear_takes_planes)                                                          \
  KERNEL(linear_planes)                                                                \
  KERNEL(linear_interleaves)                                                           \
  KERNEL(linear_takes_tiles)                                                           \
  KERNEL(linear_tiles)                                                                 \
  KERNEL(linear_plan)                                                                  \
  KERNEL(linear_parts)                                                                 \
  KERNEL(linear_range)                                                                 \
  KERNEL(linear_scratch)                                                               \
  KERNEL(linear_part)                                                                  \
  KERNEL(linear_rows)                                                                  \
  KERNEL(rms_norm_rows)                                                                \
  KERNEL(rope_tokens)                                                                  \
  KERNEL(swiglu_range)                                                                 \
  KERNEL(quantize_row)                                                                 \
  KERNEL(weighted_sums)                                                                \
  KERNEL(largest_score)                                                                \
  KERNEL(best_scores)                                                                  \
  KERNEL(score_sum)                                                                    \
  KERNEL(attention_scratch)                                                            \
  KERNEL(attention_part)                                                               \
  KERNEL(attention_merge)

// Declares each kernel with the type that the table states for it.
#define DECLARE(kernel) std::remove_pointer_t<decltype(Kernels::kernel)> kernel;
TINYLLM_KERNELS(DECLARE)

extern const Kernels kernels;

#define ENTRY(kernel) .kernel = kernel,
const Kernels kernels = {.name = TINYLLM_TIER_NAME, TINYLLM_KERNELS(ENTRY)};

}  // namespace tinyllm::TINYLLM_TIER
