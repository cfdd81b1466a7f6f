// Keys and values packed into panels, the layout of attention/prefill/products.h.
#pragma once

#include "attention/kv_rows.h"
#include "attention/prefill/products.h"
#include "isa/transpose.h"

namespace tinyllm::TINYLLM_ISA {

// W elements of row n from element d on: W features, or 2 W features in pairs.
template <typename E, typename Rows>
Words load_elements(const KeyValues& kv, const RowPointers& rows, int64_t n, int64_t d) {
  const auto features = [&](int64_t feature) {
    Affine affine{};
    if (Rows::kScaled) affine = Rows::affine(kv, rows, n, kv.group_of(feature));
    return load_features<Rows>(rows.codes[n], feature, affine);
  };
  if constexpr (std::is_same_v<E, float>) {
    return bit_cast<Words>(features(d));
#if defined(__AVX512BF16__)
  } else if constexpr (std::is_same_v<Rows, DenseRows<BFloat16>>) {
    return load_words(rows.codes[n] + d * sizeof(BFloat16Pair));
  } else {  // rows that end within a vector were unpacked to floats
    return to_bfloat16_pairs(features(2 * d), features(2 * d + W));
#endif
  }
}

// Packs `count` keys as columns `first` to `first + count`. A panel has kPanelWidth keys and
// `depth` rows of elements. Missing keys up to a whole vector are zero.
template <typename E, typename Rows>
void pack_keys(const KeyValues& kv, const RowPointers& keys, int64_t first, int64_t count,
               int64_t depth, E* panels) {
  for (int64_t n = 0; n < count; n += W) {
    const int64_t column = first + n;
    E* to = panels + column / kPanelWidth * depth * kPanelWidth + column % kPanelWidth;
    for (int64_t d = 0; d < depth; d += W) {
      Words square[W];
      for (int i = 0; i < W; ++i) {
        square[i] = n + i < count ? load_elements<E, Rows>(kv, keys, n + i, d) : Words{};
      }
      transpose(square);
      for (int i = 0; i < W; ++i) store_words(to + (d + i) * kPanelWidth, square[i]);
    }
  }
}

// Packs `count` values as rows `first` to `first + count`. A panel has kPanelWidth features and
// `depth` rows of elements. A pair has the same feature of two consecutive values, and `first` is
// even.
template <typename E, typename Rows>
void pack_values(const KeyValues& kv, const RowPointers& values, int64_t first, int64_t count,
                 int64_t dim, int64_t depth, E* panels) {
  for (int64_t n = 0; n < count; n += kNumbers<E>) {
    for (int64_t d = 0; d < dim; d += W) {
      const int64_t panel_row = d / kPanelWidth * depth + (first + n) / kNumbers<E>;
      E* to = panels + panel_row * kPanelWidth + d % kPanelWidth;
      if constexpr (std::is_same_v<E, float>) {
        store_words(to, load_elements<float, Rows>(kv, values, n, d));
#if defined(__AVX512BF16__)
      } else {
        const auto bfloat16s = [&](int64_t i) {
          if (i >= count) return Words{};
          Words bits = load_elements<float, Rows>(kv, values, i, d);
          if (std::is_same_v<Rows, DenseRows<BFloat16>>) return bits >> 16;  // nothing to round
          return bfloat16_bits(bit_cast<Floats>(bits));
        };
        store_words(to, bfloat16s(n) | bfloat16s(n + 1) << 16);
#endif
      }
    }
  }
}

}  // namespace tinyllm::TINYLLM_ISA
