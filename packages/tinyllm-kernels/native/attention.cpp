#include "attention.h"

#include "attention_decode.h"
#include "attention_prefill.h"
#include "kernels.h"
#include "query_rows.h"
#include "softmax_rows.h"

namespace tinyllm::TINYLLM_TIER {

int64_t attention_scratch(const AttentionTask& t) {
  return Partial::size(kPrefillRows, t.width()) + std::max(decode_scratch(t), prefill_scratch(t));
}

// Which of the two it is depends on the request, not on the block: the last one may be short.
void attention_part(const AttentionTask& t, const AttentionPart& part, float* partials,
                    float* scratch) {
  const int64_t rows = part.block.rows, width = t.width();
  const bool few = Request(t, part.block.request).queries * t.group() <= kDecodeRows;
  const bool whole = part.partial < 0;
  Partial found(whole ? scratch : partials + part.partial, rows, width);
  (few ? decode_part : prefill_part)(t, part, found, scratch + Partial::size(kPrefillRows, width));
  if (!whole) return;
  for (int64_t n = 0; n < rows; ++n) {
    store_row(t, part.block, n, found.sums + n * width, found.totals[n]);
  }
}

// Weights of different parts are relative to different scores: each part counts by how its own
// largest score compares with the largest of all.
void attention_merge(const AttentionTask& t, const AttentionMerge& merge, float* partials) {
  const int64_t rows = merge.block.rows, width = t.width();
  const int64_t size = Partial::size(rows, width);
  const auto part = [&](int64_t i) {
    return Partial(partials + merge.partial + i * size, rows, width);
  };
  for (int64_t n = 0; n < rows; ++n) {
    float top = kUnseen, total = 0;
    for (int64_t i = 0; i < merge.count; ++i) top = std::max(top, part(i).tops[n]);
    float* sums = part(0).sums + n * width;
    for (int64_t i = 0; i < merge.count; ++i) {
      const float share = exp(splat(part(i).tops[n] - base_of(top)))[0];
      const float* others = part(i).sums + n * width;
      for (int64_t d = 0; d < width; d += W) {
        store(sums + d, (i ? load(sums + d) : Floats{}) + load(others + d) * share);
      }
      total += part(i).totals[n] * share;
    }
    store_row(t, merge.block, n, sums, total);
  }
}

}  // namespace tinyllm::TINYLLM_TIER
