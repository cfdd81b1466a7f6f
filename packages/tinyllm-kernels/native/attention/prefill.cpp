// Attention of a prefill: a tile of query rows over a range of keys, with an online softmax.
//
// Keys and values are packed 128 at a time. For each micro-tile of query rows the scores of the
// packed keys are computed, turned into weights relative to the running maximum of the row, and
// multiplied by the values.
#include "attention/prefill/panels.h"
#include "attention/prefill/tile.h"
#include "isa/tile_registers.h"

// On processors with AMX, attention/amx_prefill.cpp computes bfloat16.
#if defined(__AVX512BF16__) && !defined(TINYLLM_AMX)
#define TINYLLM_FAST_PAIRS
#endif

namespace tinyllm::TINYLLM_ISA {
namespace {

// A mask of the bits of an element that belong to keys in a range. A float is of key j, a pair is
// of keys j and j + 1.
template <typename E>
uint32_t key_mask(int64_t j, const KeyRange& keys) {
  if (kNumbers<E> == 1) return keys.contains(j) ? ~0u : 0u;
  return (keys.contains(j) ? 0xffffu : 0u) | (keys.contains(j + 1) ? 0xffff0000u : 0u);
}

template <typename E>
E masked(E element, uint32_t mask) {
  return bit_cast<E>(bit_cast<uint32_t>(element) & mask);
}

// The computation of one part with elements of type E.
template <typename E>
struct Prefill : PrefillTile {
  Prefill(const AttentionTask& t, const AttentionPart& part, float* scratch)
      : PrefillTile(t, part, scratch),
        depth((t.dim + W * kNumbers<E> - 1) / (W * kNumbers<E>)*W),
        weights(reinterpret_cast<E*>(kNumbers<E> == 1 ? scores : weights_memory)),
        q(reinterpret_cast<E*>(q_memory)),
        k(reinterpret_cast<E*>(k_memory)),
        v(reinterpret_cast<E*>(v_memory)) {}

  void load_query_elements();
  void pack(const KeyRange& keys);
  void attend(int64_t tile_row, const KeyRange& keys);
  void round_weights(const KeyRange& keys);
  void accumulate_values(int64_t tile_row, const KeyRange& keys);
  void accumulate_masked(int64_t tile_row, const TileKeys& tile_keys, const KeyRange& keys);

  const int64_t depth;   // elements of a query, in whole vectors
  E* const weights;      // kRegisterRows x kPackedKeys / kNumbers; `scores` if E is float
  E* const q;            // kVectorQueryTileRows x width / kNumbers
  E *const k, *const v;  // panels of the packed keys and values
};

// Queries are followed by zeros, after the last feature and after the last row.
template <>
void Prefill<float>::load_query_elements() {
  load_queries(t, tile, 1, q);
  const int64_t rows = tile.rows;
  std::fill_n(q + rows * width, (PartialResult::padded_rows(rows) - rows) * width, 0.0f);
}

// Weights of type float stay where the scores were.
template <>
void Prefill<float>::round_weights(const KeyRange&) {}

#if defined(TINYLLM_FAST_PAIRS)
template <>
void Prefill<BFloat16Pair>::load_query_elements() {
  std::fill_n(q, PartialResult::padded_rows(tile.rows) * width / 2, BFloat16Pair{});
  for (int64_t n = 0; n < tile.rows; ++n) {
    const auto* from = static_cast<const BFloat16*>(t.q) + row_offset(t, tile, n, t.q_strides);
    std::memcpy(q + n * width / 2, from, t.dim * sizeof *from);
  }
}

template <>
void Prefill<BFloat16Pair>::round_weights(const KeyRange& keys) {
  for (int64_t n = 0; n < kRegisterRows; ++n) {
    for (int64_t j = keys.first / (2 * W) * (2 * W); j < keys.last; j += 2 * W) {
      const float* from = scores + n * kPackedKeys + j;
      store_words(weights + (n * kPackedKeys + j) / 2,
                  to_bfloat16_pairs(load(from), load(from + W)));
    }
  }
}
#endif

// Packs up to kPackedKeys keys and values.
template <typename E>
void Prefill<E>::pack(const KeyRange& keys) {
  for (int64_t j = keys.first; j < keys.last; j += kRowBatch) {
    const int64_t count = std::min(kRowBatch, keys.last - j), first = j - keys.first;
    const RowPointers key_rows(t, t.k, tile.request, tile.kv_head, j, count);
    with_fast_rows(t, t.k, key_rows, count, W * kNumbers<E>, unpacked,
                   [&]<typename Rows>(Rows, const RowPointers& rows) {
                     pack_keys<E, Rows>(t.k, rows, first, count, depth, k);
                   });
    const RowPointers value_rows(t, t.v, tile.request, tile.kv_head, j, count);
    with_fast_rows(t, t.v, value_rows, count, W, unpacked,
                   [&]<typename Rows>(Rows, const RowPointers& rows) {
                     pack_values<E, Rows>(t.v, rows, first, count, t.dim,
                                          kPackedKeys / kNumbers<E>, v);
                   });
  }
}

// Adds the packed keys, `keys` of the request, to the results of a micro-tile.
template <typename E>
void Prefill<E>::attend(int64_t tile_row, const KeyRange& keys) {
  const TileKeys tile_keys = keys_of_rows(tile_row, keys);
  KeyRange any = tile_keys.of_any_row, all = tile_keys.of_all_rows;
  const int64_t q_stride = width / kNumbers<E>;
  for (int64_t j = any.first / kPanelWidth * kPanelWidth; j < any.last; j += kPanelWidth) {
    multiply_panel<false>(q + tile_row * q_stride, q_stride, k + j * depth, depth, t.scale,
                          scores + j, kPackedKeys, std::min<int64_t>(kPanelWidth, any.last - j));
  }
  for (int n = 0; n < kRegisterRows; ++n) {
    const KeyRange& of_row = tile_keys.of_row[n];
    if (!of_row.empty()) compute_weights(tile_row, n, keys.first, of_row);
  }
  round_weights(any);
  // Round `all` inward to whole elements, and the begin of `any` outward.
  all.first = (all.first + kNumbers<E> - 1) / kNumbers<E> * kNumbers<E>;
  all.last = all.last / kNumbers<E> * kNumbers<E>;
  any.first = any.first / kNumbers<E> * kNumbers<E>;
  if (all.empty()) all = {any.last, any.last};
  // Add in the order of the keys, so that the sums of a row do not depend on the keys of other
  // rows.
  accumulate_masked(tile_row, tile_keys, {any.first, all.first});
  accumulate_values(tile_row, all);
  accumulate_masked(tile_row, tile_keys, {all.last, any.last});
}

// Adds the weighted values of packed keys that all rows of a micro-tile attend to.
template <typename E>
void Prefill<E>::accumulate_values(int64_t tile_row, const KeyRange& keys) {
  const int64_t first = keys.first / kNumbers<E>, last = keys.last / kNumbers<E>;
  const int64_t weights_stride = kPackedKeys / kNumbers<E>;
  for (int64_t d = 0; d < t.dim; d += kPanelWidth) {
    const E* panel = v + d * kPackedKeys / kNumbers<E> + first * kPanelWidth;
    multiply_panel<true>(weights + first, weights_stride, panel, last - first, 1,
                         split.values + tile_row * width + d, width,
                         std::min<int64_t>(kPanelWidth, t.dim - d));
  }
}

// Adds the weighted values of packed keys that only some rows attend to, with the same bits as
// `accumulate_values`. Other rows must not see these values, not even multiplied by zero: 0 * NaN
// is NaN.
template <typename E>
void Prefill<E>::accumulate_masked(int64_t tile_row, const TileKeys& tile_keys,
                                   const KeyRange& keys) {
  for (int64_t j = keys.first; j < keys.last; j += kNumbers<E>) {
    for (int n = 0; n < kRegisterRows; ++n) {
      const uint32_t mask = key_mask<E>(j, tile_keys.of_row[n]);
      if (mask == 0) continue;
      const E weight = masked(weights[(n * kPackedKeys + j) / kNumbers<E>], mask);
      float* sums = split.values + (tile_row + n) * width;
      for (int64_t d = 0; d < t.dim; d += W) {
        const int64_t panel_row = (d / kPanelWidth * kPackedKeys + j) / kNumbers<E>;
        const E* values = v + panel_row * kPanelWidth + d % kPanelWidth;
        E masked_values[W];
        store_words(masked_values, load_words(values) & mask);
        store(sums + d, multiply_add(load(sums + d), weight, masked_values));
      }
    }
  }
}

}  // namespace

int64_t prefill_tile_rows(const AttentionTask& t) {
  return W == 16 || uses_integers(t) ? kVectorQueryTileRows : kQueryTileRows;
}

int64_t prefill_scratch(const AttentionTask& t) { return PrefillTile::scratch_floats(t); }

void prefill_part(const AttentionTask& t, const AttentionPart& part, PartialResult& result,
                  float* scratch) {
#if defined(TINYLLM_FAST_PAIRS)
  // Not for quantized keys: rounding them to bfloat16 would shift large scores too far.
  if (t.type == Type::bfloat16 && t.k.mode == Mode::dense) {
    return prefill<Prefill<BFloat16Pair>>(t, part, result, scratch);
  }
#endif
  if (uses_integers(t)) return integer_prefill_part(t, part, result, scratch);
  prefill<Prefill<float>>(t, part, result, scratch);
}

}  // namespace tinyllm::TINYLLM_ISA
