#include "kernels.h"

#include "numbers.h"

namespace tinyllm::TINYLLM_TIER {

void to_floats(const void* from, Type type, float* to, int64_t count) {
  with_type(type, [&]<typename T>(T*) {
    const T* numbers = static_cast<const T*>(from);
    int64_t i = 0;
    for (; i + W <= count; i += W) store(to + i, load_as_floats(numbers + i));
    for (; i < count; ++i) to[i] = to_float(numbers[i]);
  });
}

extern const Kernels kernels;

const Kernels kernels = {
    .name = TINYLLM_TIER_NAME,
    .to_floats = to_floats,
    .group_sums = group_sums,
    .linear_takes_planes = linear_takes_planes,
    .linear_planes = linear_planes,
    .linear_interleaves = linear_interleaves,
    .linear_takes_tiles = linear_takes_tiles,
    .linear_tiles = linear_tiles,
    .linear_plan = linear_plan,
    .linear_parts = linear_parts,
    .linear_range = linear_range,
    .linear_scratch = linear_scratch,
    .linear_part = linear_part,
    .linear_rows = linear_rows,
    .rms_norm_rows = rms_norm_rows,
    .rope_tokens = rope_tokens,
    .swiglu_range = swiglu_range,
    .quantize_row = quantize_row,
    .weighted_sums = weighted_sums,
    .largest_score = largest_score,
    .best_scores = best_scores,
    .score_sum = score_sum,
    .attention_scratch = attention_scratch,
    .attention_part = attention_part,
    .attention_merge = attention_merge,
};

}  // namespace tinyllm::TINYLLM_TIER
