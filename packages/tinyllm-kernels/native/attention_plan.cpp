#include "attention_plan.h"

#include <algorithm>

namespace tinyllm {
namespace {

// One block of queries: a part for each span of keys that it sees.
void add_block(const AttentionTask& t, const Request& request, const QueryBlock& block,
               AttentionPlan& plan) {
  const int64_t group = t.group();
  const int64_t first = Seen(t, request, block.first / group).first;
  const int64_t last = Seen(t, request, (block.first + block.rows - 1) / group).last;
  const int64_t from = first / kSpan, count = (last + kSpan - 1) / kSpan - from;
  if (count <= 1) {
    plan.parts.push_back({block, first, last, -1});
    return;
  }
  plan.merges.push_back({block, plan.partials, count});
  for (int64_t n = 0; n < count; ++n) {
    plan.parts.push_back({block, std::max(first, (from + n) * kSpan),
                          std::min(last, (from + n + 1) * kSpan), plan.partials});
    plan.partials += Partial::size(block.rows, t.width());
  }
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionTask& t) {
  for (int64_t index = 0; index < t.requests; ++index) {
    const Request request(t, index);
    const int64_t rows = request.queries * t.group();
    for (int64_t head = 0; head < t.kv_heads; ++head) {
      for (int64_t first = 0; first < rows; first += kBlockRows) {
        add_block(t, request, {index, head, first, std::min(kBlockRows, rows - first)}, *this);
      }
    }
  }
}

}  // namespace tinyllm
