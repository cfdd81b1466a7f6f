// Attention of one query, of all heads that share a key: memory is what limits, and each key and
// value is read once.
#pragma once

#include <algorithm>

#include "attention/plan.h"
#include "attention/softmax.h"

namespace tinyllm::TINYLLM_TIER {

int64_t decode_scratch(const AttentionTask&);
void decode_part(const AttentionTask&, const AttentionPart&, Partial& found, float* scratch);

// --- attention_prefill.h
// Attention of many rows of queries: arithmetic is what limits. Keys and values are packed once for
// a block of rows, and scores stay in the cache.

int64_t prefill_scratch(const AttentionTask&);
void prefill_part(const AttentionTask&, const AttentionPart&, Partial& found, float* scratch);

// --- fold_rows.h
// What was found in one span of keys, with what was found in the next.

inline void clear(Partial& found, int64_t rows, int64_t width) {
  std::fill_n(found.sums, rows * width, 0.0f);
  std::fill_n(found.tops, rows, kUnseen);
  std::fill_n(found.totals, rows, 0.0f);
}

// Weights of different spans are relative to different scores: each span counts by how its own
// largest score compares with the larger of both. One in which a row saw nothing changes nothing.
inline void fold(Partial& found, const Partial& next, int64_t rows, int64_t width) {
  for (int64_t n = 0; n < rows; ++n) {
    const float top = std::max(found.tops[n], next.tops[n]);
    const float share = exp(splat(found.tops[n] - base_of(top)))[0];
    const float next_share = exp(splat(next.tops[n] - base_of(top)))[0];
    float* sums = found.sums + n * width;
    const float* others = next.sums + n * width;
    for (int64_t d = 0; d < width; d += W) {
      store(sums + d, load(sums + d) * share + load(others + d) * next_share);
    }
    found.totals[n] = found.totals[n] * share + next.totals[n] * next_share;
    found.tops[n] = top;
  }
}

}  // namespace tinyllm::TINYLLM_TIER
