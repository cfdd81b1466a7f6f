#include "attention/plan.h"

#include <algorithm>

namespace tinyllm {
namespace {

// One block of queries: a part for each span of keys that it sees.
void add_block(const AttentionTask& t, const QueryBlock& block, int64_t span, AttentionPlan& plan) {
  const Request request(t, block.request);
  const int64_t group = t.group();
  const int64_t first = Seen(t, request, block.first / group).first;
  const int64_t last = Seen(t, request, (block.first + block.rows - 1) / group).last;
  const int64_t from = first / span, count = (last + span - 1) / span - from;
  if (count <= 1) {
    plan.parts.push_back({block, first, last, -1});
    return;
  }
  plan.merges.push_back({block, plan.partials, count});
  for (int64_t n = 0; n < count; ++n) {
    plan.parts.push_back({block, std::max(first, (from + n) * span),
                          std::min(last, (from + n + 1) * span), plan.partials});
    plan.partials += Partial::size(block.rows, t.width());
  }
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionTask& t) {
  for (int64_t index = 0; index < t.requests; ++index) {
    const Request request(t, index);
    const int64_t rows = request.queries * t.group();
    const int64_t most = decodes(t, request) ? t.group() : kPrefillRows;
    // Where there are blocks enough for all threads, each goes through all of its spans.
    const int64_t span = decodes(t, request)    ? kSpan
                         : rows <= kPrefillRows ? kPrefillSpan
                                                : std::max<int64_t>(request.keys, 1);
    for (int64_t head = 0; head < t.kv_heads; ++head) {
      for (int64_t first = 0; first < rows; first += most) {
        add_block(t, {index, head, first, std::min(most, rows - first)}, span, *this);
      }
    }
  }
  // The longest first, so that no thread is left alone with one at the end.
  std::stable_sort(parts.begin(), parts.end(), [](const AttentionPart& a, const AttentionPart& b) {
    return a.block.rows * (a.last - a.first) > b.block.rows * (b.last - b.first);
  });
}

}  // namespace tinyllm
