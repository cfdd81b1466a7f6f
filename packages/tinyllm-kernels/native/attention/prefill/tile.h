// The base of the vector kernels of a prefill: the keys of each row, the online softmax, and the
// order in which keys are added.
#pragma once

#include <algorithm>

#include "attention/kv_rows.h"
#include "attention/parts.h"
#include "attention/prefill/products.h"
#include "attention/query_rows.h"
#include "ceil_div.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int64_t kPackedKeys = 128;  // keys that are packed at once; they stay in the cache
static_assert(kVectorQueryTileRows % kRegisterRows == 0 && kPrefillSplit % kPackedKeys == 0);
static_assert(kPackedKeys % kPanelWidth == 0 && kPackedKeys % kRowBatch == 0);

// The keys that the rows of a micro-tile attend to, relative to the first packed key.
struct TileKeys {
  KeyRange of_row[kRegisterRows];
  KeyRange of_any_row;   // from the first key of any row to the last key of any row
  KeyRange of_all_rows;  // keys that every row attends to; possibly empty
};

// A query tile, and the memory in which its parts are computed. `tile_row` counts the rows of the
// tile: it is the first row of a micro-tile.
struct PrefillTile {
  PrefillTile(const AttentionTask& t, const AttentionPart& part, float* scratch)
      : t(t),
        tile(part.tile),
        request(t, part.tile.request),
        width(t.padded_dim()),
        split(scratch, part.tile.rows, width),
        unpacked(scratch + PartialResult::floats(kVectorQueryTileRows, width)),
        scores(unpacked + kRowBatch * width),
        weights_memory(scores + kRegisterRows * kPackedKeys),
        q_memory(weights_memory + kRegisterRows * kPackedKeys),
        k_memory(q_memory + kVectorQueryTileRows * width),
        v_memory(k_memory + kPackedKeys * width) {}

  // Floats of scratch memory.
  static int64_t scratch_floats(const AttentionTask& t) {
    const int64_t width = t.padded_dim();
    const int64_t value_columns = round_up(width, kPanelWidth);
    return PartialResult::floats(kVectorQueryTileRows, width) +
           (kRowBatch + kVectorQueryTileRows + kPackedKeys) * width +
           2 * kRegisterRows * kPackedKeys + kPackedKeys * value_columns;
  }

  TileKeys keys_of_rows(int64_t tile_row, const KeyRange& keys) const;
  void compute_weights(int64_t tile_row, int64_t n, int64_t first_key, const KeyRange& keys);

  // Rows that fill up the last micro-tile repeat the last row of the query tile.
  int64_t existing_row(int64_t row) const { return std::min(row, tile.rows - 1); }

  const AttentionTask& t;
  const QueryTile& tile;
  const Request request;
  const int64_t width;
  PartialResult split;    // result of the current split of keys
  float* const unpacked;  // kRowBatch rows: keys or values that cannot be read in place
  float* const scores;    // kRegisterRows x kPackedKeys: scores, then weights as floats
  // Memory of the elements that kernels multiply: kRegisterRows x kPackedKeys weights,
  // kVectorQueryTileRows x width numbers of queries, and the packed keys and values.
  float *const weights_memory, *const q_memory, *const k_memory, *const v_memory;
};

// `keys` are the packed keys, in the numbering of the request.
inline TileKeys PrefillTile::keys_of_rows(int64_t tile_row, const KeyRange& keys) const {
  TileKeys result{{}, {kPackedKeys, 0}, {0, kPackedKeys}};
  KeyRange &any = result.of_any_row, &all = result.of_all_rows;
  for (int n = 0; n < kRegisterRows; ++n) {
    const int64_t query = (tile.first + existing_row(tile_row + n)) / t.heads_per_kv();
    const KeyRange visible = visible_keys(t, request, query);
    KeyRange& of_row = result.of_row[n];
    of_row.first = std::clamp(visible.first, keys.first, keys.last) - keys.first;
    of_row.last = std::clamp(visible.last, keys.first, keys.last) - keys.first;
    if (of_row.empty()) of_row.last = of_row.first;
    any = {std::min(any.first, of_row.first), std::max(any.last, of_row.last)};
    all = {std::max(all.first, of_row.first), std::min(all.last, of_row.last)};
  }
  return result;
}

// Turns the scores of row n of a micro-tile into weights, over the packed keys that it attends
// to. If the running maximum grows, the sums of earlier keys are rescaled. Packed key 0 is key
// `first_key` of the request.
inline void PrefillTile::compute_weights(int64_t tile_row, int64_t n, int64_t first_key,
                                         const KeyRange& keys) {
  float* row_scores = scores + n * kPackedKeys + keys.first;
  const int64_t count = keys.count();
  if (t.mask) {
    const KeyRange request_keys{first_key + keys.first, first_key + keys.last};
    add_mask(t, tile, existing_row(tile_row + n), request_keys, row_scores);
  }
  float& running_max = split.row_max[tile_row + n];
  float& row_sum = split.row_sum[tile_row + n];
  const float new_max = max_score(row_scores, count, running_max);
  if (new_max != running_max) {
    const float factor = exp(splat(running_max - softmax_shift(new_max)))[0];
    float* values = split.values + (tile_row + n) * width;
    for (int64_t d = 0; d < width; d += W) store(values + d, load(values + d) * factor);
    row_sum *= factor;
    running_max = new_max;
  }
  row_sum += exp_scores(row_scores, count, softmax_shift(running_max));
}

// Packed keys and splits are counted from key 0, even if the part begins later. So the order of the
// sums of a row does not depend on the part.
//
// `Work` is a PrefillTile that loads queries, packs keys and values, and attends to packed keys.
template <typename Work>
void prefill(const AttentionTask& t, const AttentionPart& part, PartialResult& result,
             float* scratch) {
  const int64_t rows = PartialResult::padded_rows(part.tile.rows);
  clear(result, rows, t.padded_dim());
  Work work(t, part, scratch);
  work.load_query_elements();
  int64_t first = part.keys.first / kPackedKeys * kPackedKeys;
  while (first < part.keys.last) {
    const int64_t split_end = (first / kPrefillSplit + 1) * kPrefillSplit;
    const int64_t last = std::min(part.keys.last, split_end);
    clear(work.split, rows, t.padded_dim());
    for (; first < last; first += kPackedKeys) {
      const KeyRange keys{first, std::min(last, first + kPackedKeys)};
      work.pack(keys);
      for (int64_t row = 0; row < part.tile.rows; row += kRegisterRows) work.attend(row, keys);
    }
    merge(result, work.split, rows, t.padded_dim());
  }
}

}  // namespace tinyllm::TINYLLM_ISA
