// Attention of many rows of queries: arithmetic is what limits. Keys and values are packed once for
// a block of rows, and scores stay in the cache.
#pragma once

#include "attention_plan.h"

namespace tinyllm::TINYLLM_TIER {

int64_t prefill_scratch(const AttentionTask&);
void prefill_part(const AttentionTask&, const AttentionPart&, Partial& found, float* scratch);

}  // namespace tinyllm::TINYLLM_TIER
