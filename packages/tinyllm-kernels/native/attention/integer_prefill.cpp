// As in attention/prefill.cpp, but queries, keys, values and weights become integers times a scale:
// each query and key, each value, and the weights of a row for the packed keys. A score is the sum
// of its integer products times both scales. A row of weights is first multiplied by the scales of
// the values, so that all its products have one scale.
//
// A key that a row does not attend to has an integer weight of zero. Sums of integers do not depend
// on their order. So no row depends on the keys of other rows.
#include "attention/prefill/tile.h"
#include "ceil_div.h"
#include "isa/tile_registers.h"

// Not for AVX-512 without VNNI: Intel's processors multiply pairs and add the products on the same
// two units that multiply and add as many floats. On processors with AMX, attention/amx_prefill.cpp
// computes bfloat16.
#if defined(__AVX512VNNI__) && !defined(TINYLLM_AMX) || defined(__AVX2__) && !defined(__AVX512F__)

#include "attention/prefill/integers.h"
#include "isa/transpose.h"

namespace tinyllm::TINYLLM_ISA {
namespace {

// Keys of pairs of weights.
constexpr int64_t kPairKeys = 2 * W;

struct IntegerPrefill : PrefillTile {
  IntegerPrefill(const AttentionTask& t, const AttentionPart& part, float* scratch)
      : PrefillTile(t, part, scratch),
        depth((t.dim + 2 * W - 1) / (2 * W) * W),
        weights(reinterpret_cast<IntegerPair*>(weights_memory)),
        q(reinterpret_cast<IntegerPair*>(q_memory)),
        k(reinterpret_cast<IntegerPair*>(k_memory)),
        v(reinterpret_cast<IntegerPair*>(v_memory)) {}

  void load_query_elements();
  void pack(const KeyRange& keys);
  void pack_keys(int64_t first, int64_t count);
  void pack_values(int64_t first, int64_t count);
  void attend(int64_t tile_row, const KeyRange& keys);
  float round_weights(int64_t n, const KeyRange& keys);
  void score_non_finite(int64_t tile_row, const TileKeys& tile_keys, int64_t first_key);
  void add_non_finite(int64_t tile_row, const TileKeys& tile_keys, int64_t first_key);

  const int64_t depth;             // pairs of a query, in whole vectors
  IntegerPair* const weights;      // kRegisterRows x kPackedKeys / 2
  IntegerPair* const q;            // kVectorQueryTileRows x width / 2
  IntegerPair *const k, *const v;  // panels of the packed keys and values
  // Scales of the integers; those of queries are multiplied by the scale of the task.
  float q_scales[kVectorQueryTileRows], k_scales[kPackedKeys], v_scales[kPackedKeys];
  // Packed keys and values with infinities or NaN.
  bool k_is_finite[kPackedKeys], v_is_finite[kPackedKeys];
  bool keys_are_finite, values_are_finite;
};

// A row with infinities or NaN has a scale of NaN, so that all its scores are NaN.
void IntegerPrefill::load_query_elements() {
  const int64_t padded = PartialResult::padded_rows(tile.rows);
  std::fill_n(q, padded * width / 2, IntegerPair{0});
  std::fill_n(q_scales, padded, 0.0f);
  for (int64_t n = 0; n < tile.rows; ++n) {
    float* row = unpacked;
    load_queries(t, {tile.request, tile.kv_head, tile.first + n, 1}, 1, row);
    const RowSize size = size_of_row(row, width);
    const IntegerScale scale = size.of_query_or_key();
    q_scales[n] = size.is_finite ? scale.scale * t.scale : std::nanf("");
    for (int64_t d = 0; d < width; d += 2 * W) {
      const Words pairs = to_integer_pairs(load(row + d), load(row + d + W), scale.inverse);
      store_words(q + (n * width + d) / 2, pairs);
    }
  }
}

// Packs up to kPackedKeys keys and values.
void IntegerPrefill::pack(const KeyRange& keys) {
  keys_are_finite = values_are_finite = true;
  for (int64_t j = keys.first; j < keys.last; j += kRowBatch) {
    const int64_t count = std::min(kRowBatch, keys.last - j), first = j - keys.first;
    const RowPointers key_rows(t, t.k, tile.request, tile.kv_head, j, count);
    dequantize_rows(t.k, key_rows, count, t.dim, width, unpacked);
    pack_keys(first, count);
    const RowPointers value_rows(t, t.v, tile.request, tile.kv_head, j, count);
    dequantize_rows(t.v, value_rows, count, t.dim, width, unpacked);
    pack_values(first, count);
  }
}

// Packs `count` unpacked keys as columns `first` to `first + count`. A panel has kPanelWidth keys
// and `depth` rows of pairs. Missing keys up to a whole vector are zero.
void IntegerPrefill::pack_keys(int64_t first, int64_t count) {
  for (int64_t n = 0; n < count; n += W) {
    const int64_t column = first + n;
    float inverses[W] = {};
    for (int i = 0; i < W; ++i) {
      k_scales[column + i] = 0;
      if (n + i >= count) continue;
      const RowSize size = size_of_row(unpacked + (n + i) * width, width);
      const IntegerScale scale = size.of_query_or_key();
      inverses[i] = scale.inverse;
      k_scales[column + i] = scale.scale;
      k_is_finite[column + i] = size.is_finite;
      keys_are_finite &= size.is_finite;
    }
    IntegerPair* to = k + column / kPanelWidth * depth * kPanelWidth + column % kPanelWidth;
    for (int64_t d = 0; d < depth; d += W) {
      Words square[W];
      for (int i = 0; i < W; ++i) {
        const float* row = unpacked + (n + i) * width + 2 * d;
        square[i] =
            n + i < count ? to_integer_pairs(load(row), load(row + W), inverses[i]) : Words{};
      }
      transpose(square);
      for (int i = 0; i < W; ++i) store_words(to + (d + i) * kPanelWidth, square[i]);
    }
  }
}

// Packs `count` unpacked values as rows `first` to `first + count`. A panel has kPanelWidth
// features and kPackedKeys / 2 rows of pairs. Missing values up to whole pairs are zero.
void IntegerPrefill::pack_values(int64_t first, int64_t count) {
  for (int64_t n = 0; n < count; n += kPairKeys) {
    float inverses[kPairKeys] = {};
    for (int64_t i = 0; i < kPairKeys; ++i) {
      v_scales[first + n + i] = 0;
      float* row = unpacked + (n + i) * width;
      if (n + i >= count) {
        std::fill_n(row, width, 0.0f);
        continue;
      }
      const RowSize size = size_of_row(row, width);
      const IntegerScale scale = size.of_value();
      inverses[i] = scale.inverse;
      v_scales[first + n + i] = scale.scale;
      v_is_finite[first + n + i] = size.is_finite;
      values_are_finite &= size.is_finite;
    }
    for (int64_t i = 0; i < W; ++i) {
      const float* row = unpacked + (n + i) * width;
      const Floats a_inverse = splat(inverses[i]), b_inverse = splat(inverses[i + W]);
      for (int64_t d = 0; d < t.dim; d += W) {
        const Floats a = load(row + d) * a_inverse, b = load(row + W * width + d) * b_inverse;
        const int64_t panel_row = (d / kPanelWidth * kPackedKeys + first + n) / 2 + i;
        store_words(v + panel_row * kPanelWidth + d % kPanelWidth, to_integer_pairs(a, b, 1));
      }
    }
  }
}

// Adds the packed keys, `keys` of the request, to the results of a micro-tile.
void IntegerPrefill::attend(int64_t tile_row, const KeyRange& keys) {
  const TileKeys tile_keys = keys_of_rows(tile_row, keys);
  const KeyRange any = tile_keys.of_any_row;
  if (any.empty()) return;
  const IntegerPair* queries = q + tile_row * width / 2;
  for (int64_t j = any.first / kPanelWidth * kPanelWidth; j < any.last; j += kPanelWidth) {
    for_panel_vectors(any.last - j, [&]<int N>(int64_t n, std::integral_constant<int, N>) {
      integer_micro_kernel<false, N>(queries, width / 2, k + j * depth + n, depth,
                                     q_scales + tile_row, k_scales + j + n, scores + j + n,
                                     kPackedKeys);
    });
  }
  if (!keys_are_finite) score_non_finite(tile_row, tile_keys, keys.first);
  const KeyRange pairs{any.first / kPairKeys * kPairKeys, round_up(any.last, kPairKeys)};
  float weight_scales[kRegisterRows];
  for (int n = 0; n < kRegisterRows; ++n) {
    const KeyRange& of_row = tile_keys.of_row[n];
    if (!of_row.empty()) compute_weights(tile_row, n, keys.first, of_row);
    float* row = scores + n * kPackedKeys;
    const KeyRange own = of_row.empty() ? KeyRange{pairs.last, pairs.last} : of_row;
    std::fill(row + pairs.first, row + own.first, 0.0f);
    std::fill(row + own.last, row + pairs.last, 0.0f);
    weight_scales[n] = round_weights(n, pairs);
  }
  for (int64_t d = 0; d < t.dim; d += kPanelWidth) {
    const IntegerPair* panel = v + (d * kPackedKeys + pairs.first * kPanelWidth) / 2;
    float* sums = split.values + tile_row * width + d;
    for_panel_vectors(t.dim - d, [&]<int N>(int64_t n, std::integral_constant<int, N>) {
      integer_micro_kernel<true, N>(weights + pairs.first / 2, kPackedKeys / 2, panel + n,
                                    pairs.count() / 2, weight_scales, nullptr, sums + n, width);
    });
  }
  if (!values_are_finite) add_non_finite(tile_row, tile_keys, keys.first);
}

// Rounds the weights of row n of a micro-tile, times the scales of the values, to integers. Returns
// their scale: NaN if a weight is NaN.
float IntegerPrefill::round_weights(int64_t n, const KeyRange& keys) {
  const float* row = scores + n * kPackedKeys;
  IntegerPair* to = weights + n * kPackedKeys / 2;
  const auto weighted = [&](int64_t j) { return load(row + j) * load(v_scales + j); };
  Floats largest{}, total{};
  for (int64_t j = keys.first; j < keys.last; j += W) {
    const Floats x = weighted(j);
    largest = max(x, largest);
    total += x;
  }
  const float most = largest_lane(largest), all = sum(total);
  const IntegerScale scale(std::max(most / kMaxInteger, all / kMaxWeightSum));
  for (int64_t j = keys.first; j < keys.last; j += kPairKeys) {
    store_words(to + j / 2, to_integer_pairs(weighted(j), weighted(j + W), scale.inverse));
  }
  return all == all ? scale.scale : all;
}

// Computes the scores of packed keys that contain infinities or NaN again, in floats, because their
// integers stand for their finite features alone.
[[gnu::noinline]] void IntegerPrefill::score_non_finite(int64_t tile_row, const TileKeys& tile_keys,
                                                        int64_t first_key) {
  for (int64_t j = tile_keys.of_any_row.first; j < tile_keys.of_any_row.last; ++j) {
    if (k_is_finite[j]) continue;
    const RowPointers pointer(t, t.k, tile.request, tile.kv_head, first_key + j, 1);
    float *key = unpacked, *query = unpacked + width;
    dequantize_rows(t.k, pointer, 1, t.dim, width, key);
    for (int n = 0; n < kRegisterRows; ++n) {
      if (!tile_keys.of_row[n].contains(j)) continue;
      const int64_t row = tile.first + existing_row(tile_row + n);
      load_queries(t, {tile.request, tile.kv_head, row, 1}, 1, query);
      float score = 0;
      for (int64_t d = 0; d < t.dim; ++d) score += query[d] * key[d];
      scores[n * kPackedKeys + j] = score * t.scale;
    }
  }
}

// Adds the infinities and NaN of values, whose integers are zero, to the rows that attend to them.
[[gnu::noinline]] void IntegerPrefill::add_non_finite(int64_t tile_row, const TileKeys& tile_keys,
                                                      int64_t first_key) {
  for (int64_t j = tile_keys.of_any_row.first; j < tile_keys.of_any_row.last; ++j) {
    if (v_is_finite[j]) continue;
    const RowPointers pointer(t, t.v, tile.request, tile.kv_head, first_key + j, 1);
    dequantize_rows(t.v, pointer, 1, t.dim, width, unpacked);
    for (int n = 0; n < kRegisterRows; ++n) {
      if (!tile_keys.of_row[n].contains(j)) continue;
      for (int64_t d = 0; d < t.dim; ++d) {
        if (std::isfinite(unpacked[d])) continue;
        split.values[(tile_row + n) * width + d] += scores[n * kPackedKeys + j] * unpacked[d];
      }
    }
  }
}

}  // namespace

bool uses_integers(const AttentionTask& t) { return t.type == Type::bfloat16; }

void integer_prefill_part(const AttentionTask& t, const AttentionPart& part, PartialResult& result,
                          float* scratch) {
  prefill<IntegerPrefill>(t, part, result, scratch);
}

#else

namespace tinyllm::TINYLLM_ISA {

bool uses_integers(const AttentionTask&) { return false; }

void integer_prefill_part(const AttentionTask&, const AttentionPart&, PartialResult&, float*) {}

#endif

}  // namespace tinyllm::TINYLLM_ISA
