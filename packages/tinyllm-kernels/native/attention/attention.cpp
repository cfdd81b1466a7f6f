// The attention kernels of the kernel table: parts, and the merging of their partial results.
#include "attention/attention.h"

#include "attention/parts.h"
#include "attention/query_rows.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

void store_rows(const AttentionTask& t, const QueryTile& tile, const PartialResult& result) {
  for (int64_t n = 0; n < tile.rows; ++n) {
    store_row(t, tile, n, result.values + n * t.padded_dim(), result.row_sum[n]);
  }
}

}  // namespace

int64_t attention_query_tile_rows(const AttentionTask& t) {
  return uses_amx(t) ? kAmxQueryTileRows : prefill_tile_rows(t);
}

int64_t attention_scratch(const AttentionTask& t) {
  int64_t floats = decode_scratch(t);
  for (int64_t index = 0; index < t.requests; ++index) {
    if (is_decode(t, Request(t, index))) continue;
    floats = std::max(floats, uses_amx(t) ? amx_prefill_scratch(t) : prefill_scratch(t));
    break;
  }
  return PartialResult::floats(kVectorQueryTileRows, t.padded_dim()) + floats;
}

void attention_part(const AttentionTask& t, const AttentionPlan& plan, int64_t index,
                    float* partials, float* scratch) {
  const AttentionPart& part = plan.parts[index];
  const int64_t width = t.padded_dim();
  const bool is_final = part.partial_offset < 0;
  const bool decodes = is_decode(t, Request(t, part.tile.request));
  if (!decodes && uses_amx(t)) {
    return amx_prefill_part(t, part, is_final ? nullptr : partials + part.partial_offset, scratch);
  }
  float* memory = is_final ? scratch : partials + part.partial_offset;
  PartialResult result(memory, part.tile.rows, width);
  float* kernel_scratch = scratch + PartialResult::floats(kVectorQueryTileRows, width);
  if (decodes) {
    const AttentionPart* next = index + 1 < std::ssize(plan.parts) ? &part + 1 : nullptr;
    decode_part(t, part, next, result, kernel_scratch);
  } else {
    prefill_part(t, part, result, kernel_scratch);
  }
  if (is_final) store_rows(t, part.tile, result);
}

void attention_merge(const AttentionTask& t, const AttentionMerge& task, float* partials) {
  const int64_t rows = task.tile.rows, width = t.padded_dim();
  const int64_t floats = PartialResult::floats(rows, width);
  float* first = partials + task.partial_offset;
  PartialResult result(first, rows, width);
  for (int64_t i = 1; i < task.count; ++i) {
    merge(result, PartialResult(first + i * floats, rows, width), rows, width);
  }
  store_rows(t, task.tile, result);
}

}  // namespace tinyllm::TINYLLM_ISA
