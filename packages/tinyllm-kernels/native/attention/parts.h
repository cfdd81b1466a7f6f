// The kernels that compute a part, one for decode steps and three for prefill, and the merging of
// partial results.
#pragma once

#include <algorithm>

#include "attention/plan.h"
#include "attention/softmax.h"

namespace tinyllm::TINYLLM_ISA {

// Computes a part of a decode step: one query, all heads that share a key. Memory bandwidth is the
// limit, and each key and value is read once. The first keys of `next`, which may be null, are
// prefetched. `scratch` has `decode_scratch` floats.
int64_t decode_scratch(const AttentionTask&);
void decode_part(const AttentionTask&, const AttentionPart&, const AttentionPart* next,
                 PartialResult& result, float* scratch);

// Rows of a query tile of `prefill_part`, at most. More rows share packed keys and values. With
// AVX-512 a second-level cache has at least 1 MB, enough for the sums of the most rows. With
// integers it has to hold less beside the sums.
inline constexpr int64_t kVectorQueryTileRows = 2 * kQueryTileRows;
int64_t prefill_tile_rows(const AttentionTask&);

// Computes a part of a prefill: a tile of queries. Arithmetic is the limit. Keys and values are
// packed once for the tile, and scores stay in the cache. `scratch` has `prefill_scratch` floats.
int64_t prefill_scratch(const AttentionTask&);
void prefill_part(const AttentionTask&, const AttentionPart&, PartialResult& result,
                  float* scratch);

// The same with 16-bit integers, if `uses_integers`: if the instruction set multiplies pairs of
// them faster than floats, and q is bfloat16. Integers of a row then lose less than its rounding to
// bfloat16 did. Float16 has more bits than the integers of a row with one large feature.
bool uses_integers(const AttentionTask&);
void integer_prefill_part(const AttentionTask&, const AttentionPart&, PartialResult& result,
                          float* scratch);

// The same on the matrix unit, if `uses_amx`. A part whose result is final is stored in y, and
// `partial` is null. `scratch` has `amx_prefill_scratch` floats.
bool uses_amx(const AttentionTask&);
int64_t amx_prefill_scratch(const AttentionTask&);
void amx_prefill_part(const AttentionTask&, const AttentionPart&, float* partial, float* scratch);

// Sets the result to that of an empty range of keys.
inline void clear(PartialResult& result, int64_t rows, int64_t width) {
  std::fill_n(result.values, rows * width, 0.0f);
  std::fill_n(result.row_max, rows, kMinusInfinity);
  std::fill_n(result.row_sum, rows, 0.0f);
}

// Adds the result of the next keys to `result`. Weights of both are relative to their own maximum,
// so both are rescaled to the larger one. The result of an empty range changes nothing.
inline void merge(PartialResult& result, const PartialResult& next, int64_t rows, int64_t width) {
  for (int64_t n = 0; n < rows; ++n) {
    const float row_max = std::max(result.row_max[n], next.row_max[n]);
    const float shift = softmax_shift(row_max);
    const float factor = exp(splat(result.row_max[n] - shift))[0];
    const float next_factor = exp(splat(next.row_max[n] - shift))[0];
    float* values = result.values + n * width;
    const float* next_values = next.values + n * width;
    for (int64_t d = 0; d < width; d += W) {
      store(values + d, load(values + d) * factor + load(next_values + d) * next_factor);
    }
    result.row_sum[n] = result.row_sum[n] * factor + next.row_sum[n] * next_factor;
    result.row_max[n] = row_max;
  }
}

}  // namespace tinyllm::TINYLLM_ISA
