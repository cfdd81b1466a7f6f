// The kernel table of the instruction set that this file is compiled for.
#include "dispatch/kernel_table.h"

#include <type_traits>

namespace tinyllm::TINYLLM_ISA {

#define TINYLLM_KERNELS(KERNEL)     \
  KERNEL(to_floats)                 \
  KERNEL(linear_kernel)             \
  KERNEL(group_sums)                \
  KERNEL(linear_quantize_x)         \
  KERNEL(linear_interleaved_rows)   \
  KERNEL(linear_reads_x_unpacked)   \
  KERNEL(linear_packed_words)       \
  KERNEL(linear_pack_x)             \
  KERNEL(linear_plan)               \
  KERNEL(linear_part_count)         \
  KERNEL(linear_part_range)         \
  KERNEL(linear_scratch)            \
  KERNEL(linear_part)               \
  KERNEL(embedding_rows)            \
  KERNEL(rms_norm_rows)             \
  KERNEL(rope_table_rows)           \
  KERNEL(rope_tokens)               \
  KERNEL(swiglu_range)              \
  KERNEL(output_gate_range)         \
  KERNEL(quantize_row)              \
  KERNEL(weighted_sums)             \
  KERNEL(argmax_range)              \
  KERNEL(top_k_range)               \
  KERNEL(exp_sum_range)             \
  KERNEL(attention_query_tile_rows) \
  KERNEL(attention_scratch)         \
  KERNEL(attention_part)            \
  KERNEL(attention_merge)           \
  KERNEL(causal_conv_scratch)       \
  KERNEL(causal_conv_part)          \
  KERNEL(gated_delta_scratch)       \
  KERNEL(gated_delta_part)          \
  KERNEL(gated_norm_rows)           \
  KERNEL(mixer_scratch)             \
  KERNEL(mixer_part)

// Declares each kernel with the type that the table states for it.
#define DECLARE(kernel) std::remove_pointer_t<decltype(KernelTable::kernel)> kernel;
TINYLLM_KERNELS(DECLARE)

extern const KernelTable kernels;

#define ENTRY(kernel) .kernel = kernel,
const KernelTable kernels = {.name = TINYLLM_ISA_NAME, TINYLLM_KERNELS(ENTRY)};

}  // namespace tinyllm::TINYLLM_ISA
