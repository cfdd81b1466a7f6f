// The plan of an attention task: query tiles, and splits of their keys. It is not in attention/,
// whose files are compiled once for each instruction set.
#include <algorithm>

#include "attention/plan.h"
#include "ceil_div.h"

namespace tinyllm {
namespace {

// Adds the parts of one query tile: one for each split of the keys that its rows attend to.
void add_tile(const AttentionTask& t, const QueryTile& tile, int64_t split, AttentionPlan& plan) {
  const Request request(t, tile.request);
  const int64_t heads_per_kv = t.heads_per_kv(), last_row = tile.first + tile.rows - 1;
  const int64_t first = visible_keys(t, request, tile.first / heads_per_kv).first;
  const int64_t last = visible_keys(t, request, last_row / heads_per_kv).last;
  const int64_t first_split = first / split, count = ceil_div(last, split) - first_split;
  if (count <= 1) {
    plan.parts.push_back({tile, {first, last}, -1});
    return;
  }
  plan.merges.push_back({tile, plan.partial_floats, count});
  for (int64_t n = first_split; n < first_split + count; ++n) {
    const KeyRange keys{std::max(first, n * split), std::min(last, (n + 1) * split)};
    plan.parts.push_back({tile, keys, plan.partial_floats});
    plan.partial_floats += PartialResult::floats(tile.rows, t.padded_dim());
  }
}

// Keys of a part, at most. A request with several query tiles for each head has enough parts for
// all threads, so each part goes through all splits of its keys.
int64_t keys_of_part(const AttentionTask& t, const Request& request, int64_t rows) {
  if (is_decode(t, request)) return kDecodeSplit;
  return rows <= kQueryTileRows ? kPrefillSplit : std::max<int64_t>(request.keys, 1);
}

// Rows of a query tile of a prefill. The result does not depend on them.
int64_t tile_rows(const AttentionTask& t, int64_t max_rows, int threads) {
  constexpr int64_t kPartsOfThread = 4, kRowStep = 64;
  int64_t rows = 0;
  for (int64_t index = 0; index < t.requests; ++index) {
    const Request request(t, index);
    if (!is_decode(t, request)) rows += request.queries * t.heads;
  }
  const int64_t share = rows / (kPartsOfThread * threads) / kRowStep * kRowStep;
  return std::clamp(share, kQueryTileRows, max_rows);
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionTask& t, int64_t max_rows, int threads) {
  const int64_t prefill_rows = tile_rows(t, max_rows, threads);
  for (int64_t index = 0; index < t.requests; ++index) {
    const Request request(t, index);
    const int64_t rows = request.queries * t.heads_per_kv();
    const int64_t tile_rows = is_decode(t, request) ? t.heads_per_kv() : prefill_rows;
    const int64_t split = keys_of_part(t, request, rows);
    for (int64_t head = 0; head < t.kv_heads; ++head) {
      for (int64_t first = 0; first < rows; first += tile_rows) {
        add_tile(t, {index, head, first, std::min(tile_rows, rows - first)}, split, *this);
      }
    }
  }
  // The longest first, so that no thread works alone at the end.
  std::stable_sort(parts.begin(), parts.end(), [](const AttentionPart& a, const AttentionPart& b) {
    return a.tile.rows * a.keys.count() > b.tile.rows * b.keys.count();
  });
}

}  // namespace tinyllm
