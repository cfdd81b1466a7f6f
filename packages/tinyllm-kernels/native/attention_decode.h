// Attention of one query, of all heads that share a key: memory is what limits, and each key and
// value is read once.
#pragma once

#include "attention_plan.h"

namespace tinyllm::TINYLLM_TIER {

int64_t decode_scratch(const AttentionTask&);
void decode_part(const AttentionTask&, const AttentionPart&, Partial& found, float* scratch);

}  // namespace tinyllm::TINYLLM_TIER
