#include "attention/parts.h"

#include <algorithm>

#include "attention/prefill_panels.h"
#include "attention/query_rows.h"
#include "attention/softmax.h"
#include "isa/tile_registers.h"

// Vectors multiply pairs of bfloat16 at half the rate of floats on the processors that have AMX.
#if defined(__AVX512BF16__) && !defined(TINYLLM_TILES)
#define TINYLLM_FAST_PAIRS
#endif

namespace tinyllm::TINYLLM_TIER {
namespace {

constexpr int64_t kKeys = 128;  // that are packed together, beside the queries in the cache
static_assert(kPrefillRows % kTileRows == 0 && kPrefillSpan % kKeys == 0);
static_assert(kKeys % kPanel == 0 && kKeys % kTile == 0);

struct Range {
  int64_t first, last;

  bool empty() const { return first >= last; }
  bool has(int64_t key) const { return first <= key && key < last; }
};

// Which bits of a number of type E, for keys from the j-th on, belong to keys that are seen.
template <typename E>
uint32_t kept_bits(int64_t j, const Range& seen) {
  if (kDepth<E> == 1) return seen.has(j) ? ~0u : 0u;
  return (seen.has(j) ? 0xffffu : 0u) | (seen.has(j + 1) ? 0xffff0000u : 0u);
}

template <typename E>
E kept_numbers(E numbers, uint32_t kept) {
  return std::bit_cast<E>(std::bit_cast<uint32_t>(numbers) & kept);
}

// A part on its way, in numbers of type E.
template <typename E>
struct Block {
  Block(const AttentionTask& t, const AttentionPart& part, float* scratch)
      : t(t),
        part(part),
        request(t, part.block.request),
        width(t.width()),
        depth((t.dim + W * kDepth<E> - 1) / (W * kDepth<E>) * W),
        found(scratch, part.block.rows, width),
        tile(scratch + Partial::size(kPrefillRows, width)),
        scores(tile + kTile * width),
        weights(reinterpret_cast<E*>(kDepth<E> == 1 ? scores : scores + kTileRows * kKeys)),
        q(reinterpret_cast<E*>(scores + 2 * kTileRows * kKeys)),
        k(q + kPrefillRows * width),
        v(k + kKeys * width) {}

  static int64_t scratch(const AttentionTask& t) {
    const int64_t panels = (t.width() + kPanel - 1) / kPanel * kPanel;
    return Partial::size(kPrefillRows, t.width()) +
           (kTile + kPrefillRows + kKeys) * t.width() + 2 * kTileRows * kKeys + kKeys * panels;
  }

  void take_queries();
  void pack(const Range& keys);
  void attend(int64_t row, const Range& keys);
  void weigh(int64_t row, int64_t n, const Range& keys, const Range& seen);
  void round_weights(const Range& seen);
  void mix(int64_t row, const Range& seen);
  void mix_border(int64_t row, const Range (&seen)[kTileRows], const Range& border);

  const AttentionTask& t;
  const AttentionPart& part;
  const Request request;
  const int64_t width;
  const int64_t depth;  // of the products with keys, in numbers of type E
  Partial found;        // in one span
  float* const tile;    // rows that had to be unpacked
  float* const scores;  // kKeys for each row of a tile
  E *const weights, *const q, *const k, *const v;
};

// Queries, with zeros after the last feature and the last row.
template <>
void Block<float>::take_queries() {
  load_queries(t, part.block, 1, q);
  const int64_t rows = part.block.rows;
  std::fill_n(q + rows * width, (Partial::padded(rows) - rows) * width, 0.0f);
}

#if defined(TINYLLM_FAST_PAIRS)
template <>
void Block<Pair>::take_queries() {
  std::fill_n(q, Partial::padded(part.block.rows) * width / 2, Pair{});
  for (int64_t n = 0; n < part.block.rows; ++n) {
    const BFloat16* from = static_cast<const BFloat16*>(t.q) + place(t, part.block, n, t.q_strides);
    std::memcpy(q + n * width / 2, from, t.dim * sizeof *from);
  }
}

template <>
void Block<Pair>::round_weights(const Range& seen) {
  for (int64_t n = 0; n < kTileRows; ++n) {
    for (int64_t j = seen.first / (2 * W) * (2 * W); j < seen.last; j += 2 * W) {
      const float* from = scores + n * kKeys + j;
      store_words(weights + (n * kKeys + j) / 2, to_pairs(load(from), load(from + W)));
    }
  }
}
#endif

// The weights of a tile, from scores to where numbers of type E are expected.
template <>
void Block<float>::round_weights(const Range&) {}

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
template <typename E>
void Block<E>::mix(int64_t row, const Range& seen) {
  const int64_t first = seen.first / kDepth<E>, last = seen.last / kDepth<E>;
  for (int64_t d = 0; d < t.dim; d += kPanel) {
    multiply_panel<true>(weights + first, kKeys / kDepth<E>,
                         v + d * kKeys / kDepth<E> + first * kPanel, last - first, 1,
                         found.sums + row * width + d, width,
                         std::min<int64_t>(kPanel, t.dim - d));
  }
}

// Adds the values that only some rows of a tile see, to the last bit as `mix` does. What others do
// not see must not reach them, even as zero times NaN.
template <typename E>
void Block<E>::mix_border(int64_t row, const Range (&seen)[kTileRows], const Range& border) {
  for (int64_t j = border.first; j < border.last; j += kDepth<E>) {
    for (int n = 0; n < kTileRows; ++n) {
      const uint32_t kept = kept_bits<E>(j, seen[n]);
      if (kept == 0) continue;
      const E weight = kept_numbers(weights[(n * kKeys + j) / kDepth<E>], kept);
      float* sums = found.sums + (row + n) * width;
      for (int64_t d = 0; d < t.dim; d += W) {
        const E* values = v + (d / kPanel * kKeys + j) / kDepth<E> * kPanel + d % kPanel;
        E seen_values[W];
        store_words(seen_values, load_words(values) & kept);
        store(sums + d, multiply_add(load(sums + d), weight, seen_values));
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
  round_weights(any);
  all.first = (all.first + kDepth<E> - 1) / kDepth<E> * kDepth<E>;
  all.last = all.last / kDepth<E> * kDepth<E>;
  any.first = any.first / kDepth<E> * kDepth<E>;
  if (all.empty()) all = {any.last, any.last};
  // In the order of the keys, so that it does not matter to a row which of them the others see.
  mix_border(row, seen, {any.first, all.first});
  mix(row, all);
  mix_border(row, seen, {all.last, any.last});
}

// Blocks of keys are counted from the first key, as spans are, whatever the first is that is seen.
template <typename E>
void prefill(const AttentionTask& t, const AttentionPart& part, Partial& found, float* scratch) {
  const int64_t rows = Partial::padded(part.block.rows);
  clear(found, rows, t.width());
  Block<E> block(t, part, scratch);
  block.take_queries();
  int64_t first = part.first / kKeys * kKeys;
  while (first < part.last) {
    const int64_t last = std::min(part.last, (first / kPrefillSpan + 1) * kPrefillSpan);
    clear(block.found, rows, t.width());
    for (; first < last; first += kKeys) {
      const Range keys{first, std::min(last, first + kKeys)};
      block.pack(keys);
      for (int64_t row = 0; row < part.block.rows; row += kTileRows) block.attend(row, keys);
    }
    fold(found, block.found, rows, t.width());
  }
}

}  // namespace

int64_t prefill_scratch(const AttentionTask& t) { return Block<float>::scratch(t); }

void prefill_part(const AttentionTask& t, const AttentionPart& part, Partial& found,
                  float* scratch) {
#if defined(TINYLLM_FAST_PAIRS)
  // Not where keys are packed: to round them to bfloat16 would shift large scores too far.
  if (t.type == Type::bfloat16 && t.k.mode == Mode::dense) {
    return prefill<Pair>(t, part, found, scratch);
  }
#endif
  prefill<float>(t, part, found, scratch);
}

}  // namespace tinyllm::TINYLLM_TIER
