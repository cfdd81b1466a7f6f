#include "attention_prefill.h"

#include <algorithm>

#include "packed_panels.h"
#include "query_rows.h"
#include "softmax_rows.h"

namespace tinyllm::TINYLLM_TIER {
namespace {

constexpr int64_t kKeys = 128;  // that are packed together, beside the queries in the cache
static_assert(kPrefillRows % kTileRows == 0 && kKeys % kPanel == 0 && kKeys % kTile == 0);

struct Range {
  int64_t first, last;

  bool empty() const { return first >= last; }
};

// A part on its way, in numbers of type E.
template <typename E>
struct Block {
  Block(const AttentionTask& t, const AttentionPart& part, Partial& found, float* scratch)
      : t(t),
        part(part),
        request(t, part.block.request),
        found(found),
        width(t.width()),
        depth((t.dim + W * kDepth<E> - 1) / (W * kDepth<E>) * W),
        tile(scratch),
        scores(tile + kTile * width),
        weights(reinterpret_cast<E*>(scores + kTileRows * kKeys)),
        q(weights + kTileRows * kKeys),
        k(q + kPrefillRows * width),
        v(k + kKeys * width) {}

  static int64_t scratch(const AttentionTask& t) {
    const int64_t panels = (t.width() + kPanel - 1) / kPanel * kPanel;
    return (kTile + kPrefillRows + kKeys) * t.width() + 2 * kTileRows * kKeys + kKeys * panels;
  }

  void take_queries();
  void pack(const Range& keys);
  void attend(int64_t row, const Range& keys);
  void weigh(int64_t row, int64_t n, const Range& keys, const Range& seen);
  void mix(int64_t row, const Range& seen);
  void mix_rest(int64_t row, int64_t first, const Range (&seen)[kTileRows], Range rest);

  const AttentionTask& t;
  const AttentionPart& part;
  const Request request;
  Partial& found;
  const int64_t width;
  const int64_t depth;   // of the products with keys, in numbers of type E
  float* const tile;     // rows that had to be unpacked
  float* const scores;   // kKeys for each row of a tile
  E *const weights, *const q, *const k, *const v;
};

// Queries, with zeros after the last feature and the last row.
template <>
void Block<float>::take_queries() {
  load_queries(t, part.block, 1, q);
  const int64_t rows = part.block.rows;
  std::fill_n(q + rows * width, (Partial::padded(rows) - rows) * width, 0.0f);
}

#if defined(__AVX512BF16__)
template <>
void Block<Pair>::take_queries() {
  std::fill_n(q, Partial::padded(part.block.rows) * width / 2, Pair{});
  for (int64_t n = 0; n < part.block.rows; ++n) {
    const BFloat16* from = static_cast<const BFloat16*>(t.q) + place(t, part.block, n, t.q_strides);
    std::memcpy(q + n * width / 2, from, t.dim * sizeof *from);
  }
}

template <>
void Block<Pair>::mix(int64_t row, const Range& seen) {
  for (int64_t n = 0; n < kTileRows; ++n) {
    for (int64_t j = seen.first / (2 * W) * (2 * W); j < seen.last; j += 2 * W) {
      const float* from = scores + n * kKeys + j;
      store_words(weights + (n * kKeys + j) / 2, to_pairs(load(from), load(from + W)));
    }
  }
  for (int64_t d = 0; d < t.dim; d += kPanel) {
    multiply_panel<true>(weights + seen.first / 2, kKeys / 2,
                         v + d * kKeys / 2 + seen.first / 2 * kPanel, (seen.last - seen.first) / 2,
                         1, found.sums + row * width + d, width,
                         std::min<int64_t>(kPanel, t.dim - d));
  }
}
#endif

// Packs keys and values, from the first of `keys` on.
template <typename E>
void Block<E>::pack(const Range& keys) {
  for (int64_t j = keys.first; j < keys.last; j += kTile) {
    const int64_t count = std::min(kTile, keys.last - j), first = j - keys.first;
    const int64_t request = part.block.request, head = part.block.kv_head;
    with_fast_rows(t, t.k, Places(t, t.k, request, head, j, count), count, W * kDepth<E>, tile,
                   [&]<typename Rows>(Rows, const Places& at) {
                     pack_keys<E, Rows>(t.k, at, first, count, depth, k);
                   });
    with_fast_rows(t, t.v, Places(t, t.v, request, head, j, count), count, W, tile,
                   [&]<typename Rows>(Rows, const Places& at) {
                     pack_values<E, Rows>(t.v, at, first, count, t.dim, kKeys / kDepth<E>, v);
                   });
  }
}

// Scores of the n-th row of a tile to weights, over the keys that it sees. Sums of earlier keys
// shrink where a larger score is found.
template <typename E>
void Block<E>::weigh(int64_t row, int64_t n, const Range& keys, const Range& seen) {
  float* at = scores + n * kKeys + seen.first;
  const int64_t count = seen.last - seen.first;
  if (t.mask) {
    const int64_t last = std::min(row + n, part.block.rows - 1);
    add_mask(t, part.block, last, keys.first + seen.first, count, at);
  }
  float& top = found.tops[row + n];
  float& total = found.totals[row + n];
  const float higher = highest(at, count, top);
  if (higher != top) {
    const float shrink = exp(splat(top - base_of(higher)))[0];
    float* sums = found.sums + (row + n) * width;
    for (int64_t d = 0; d < width; d += W) store(sums + d, load(sums + d) * shrink);
    total *= shrink;
    top = higher;
  }
  total += to_weights(at, count, base_of(top));
}

// Adds the values that all rows of a tile see.
template <>
void Block<float>::mix(int64_t row, const Range& seen) {
  for (int64_t d = 0; d < t.dim; d += kPanel) {
    multiply_panel<true>(scores + seen.first, kKeys, v + d * kKeys + seen.first * kPanel,
                         seen.last - seen.first, 1, found.sums + row * width + d, width,
                         std::min<int64_t>(kPanel, t.dim - d));
  }
}

// Adds the values that only some rows of a tile see: what others do not see must not reach them,
// even as zero times NaN.
template <typename E>
void Block<E>::mix_rest(int64_t row, int64_t first, const Range (&seen)[kTileRows], Range rest) {
  for (int64_t j = rest.first; j < rest.last; ++j) {
    const Places at(t, t.v, part.block.request, part.block.kv_head, first + j, 1);
    unpack(t.v, at, 1, t.dim, width, tile);
    for (int n = 0; n < kTileRows; ++n) {
      if (j < seen[n].first || j >= seen[n].last) continue;
      const float weight = scores[n * kKeys + j];
      float* sums = found.sums + (row + n) * width;
      for (int64_t d = 0; d < width; d += W) {
        store(sums + d, load(sums + d) + weight * load(tile + d));
      }
    }
  }
}

// One tile of rows over the keys that are packed.
template <typename E>
void Block<E>::attend(int64_t row, const Range& keys) {
  Range seen[kTileRows], any{kKeys, 0}, all{0, kKeys};
  for (int n = 0; n < kTileRows; ++n) {
    // Rows that fill up a tile follow the last one.
    const int64_t last = std::min(row + n, part.block.rows - 1);
    const Seen see(t, request, (part.block.first + last) / t.group());
    seen[n].first = std::clamp(see.first, keys.first, keys.last) - keys.first;
    seen[n].last = std::clamp(see.last, keys.first, keys.last) - keys.first;
    if (seen[n].empty()) seen[n].last = seen[n].first;
    any = {std::min(any.first, seen[n].first), std::max(any.last, seen[n].last)};
    all = {std::max(all.first, seen[n].first), std::min(all.last, seen[n].last)};
  }
  for (int64_t j = any.first / kPanel * kPanel; j < any.last; j += kPanel) {
    multiply_panel<false>(q + row * width / kDepth<E>, width / kDepth<E>, k + j * depth, depth,
                          t.scale, scores + j, kKeys, std::min<int64_t>(kPanel, any.last - j));
  }
  for (int n = 0; n < kTileRows; ++n) {
    if (!seen[n].empty()) weigh(row, n, keys, seen[n]);
  }
  all.first = (all.first + kDepth<E> - 1) / kDepth<E> * kDepth<E>;
  all.last = all.last / kDepth<E> * kDepth<E>;
  if (all.empty()) all = {any.last, any.last};
  mix(row, all);
  mix_rest(row, keys.first, seen, {any.first, all.first});
  mix_rest(row, keys.first, seen, {all.last, any.last});
}

template <typename E>
void prefill(const AttentionTask& t, const AttentionPart& part, Partial& found, float* scratch) {
  const int64_t rows = Partial::padded(part.block.rows);
  std::fill_n(found.sums, rows * t.width(), 0.0f);
  std::fill_n(found.tops, rows, kUnseen);
  std::fill_n(found.totals, rows, 0.0f);
  Block<E> block(t, part, found, scratch);
  block.take_queries();
  for (int64_t j = part.first; j < part.last; j += kKeys) {
    const Range keys{j, std::min(part.last, j + kKeys)};
    block.pack(keys);
    for (int64_t row = 0; row < part.block.rows; row += kTileRows) block.attend(row, keys);
  }
}

}  // namespace

int64_t prefill_scratch(const AttentionTask& t) { return Block<float>::scratch(t); }

void prefill_part(const AttentionTask& t, const AttentionPart& part, Partial& found,
                  float* scratch) {
#if defined(__AVX512BF16__)
  // Not where keys are packed: to round them to bfloat16 would shift large scores too far.
  if (t.type == Type::bfloat16 && t.k.mode == Mode::dense) {
    return prefill<Pair>(t, part, found, scratch);
  }
#endif
  prefill<float>(t, part, found, scratch);
}

}  // namespace tinyllm::TINYLLM_TIER
