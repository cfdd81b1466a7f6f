#include "attention/attention.h"

#include "attention/parts.h"
#include "attention/query_rows.h"

namespace tinyllm::TINYLLM_TIER {

int64_t attention_scratch(const AttentionTask& t) {
  return Partial::size(kPrefillRows, t.width()) + std::max(decode_scratch(t), prefill_scratch(t));
}

void attention_part(const AttentionTask& t, const AttentionPart& part, float* partials,
                    float* scratch) {
  const int64_t rows = part.block.rows, width = t.width();
  const bool decoded = decodes(t, Request(t, part.block.request));
  const bool whole = part.partial < 0;
  Partial found(whole ? scratch : partials + part.partial, rows, width);
  float* rest = scratch + Partial::size(kPrefillRows, width);
  (decoded ? decode_part : prefill_part)(t, part, found, rest);
  if (!whole) return;
  for (int64_t n = 0; n < rows; ++n) {
    store_row(t, part.block, n, found.sums + n * width, found.totals[n]);
  }
}

void attention_merge(const AttentionTask& t, const AttentionMerge& merge, float* partials) {
  const int64_t rows = merge.block.rows, width = t.width();
  const int64_t size = Partial::size(rows, width);
  Partial found(partials + merge.partial, rows, width);
  for (int64_t i = 1; i < merge.count; ++i) {
    fold(found, Partial(partials + merge.partial + i * size, rows, width), rows, width);
  }
  for (int64_t n = 0; n < rows; ++n) {
    store_row(t, merge.block, n, found.sums + n * width, found.totals[n]);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
