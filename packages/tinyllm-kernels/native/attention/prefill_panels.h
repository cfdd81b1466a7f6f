// Keys and values in panels, as `attention/prefill_products.h` wants them.
#pragma once

#include "attention/kv_rows.h"
#include "attention/prefill_products.h"
#include "isa/transpose.h"

namespace tinyllm::TINYLLM_TIER {

#if defined(__AVX512BF16__)
// The numbers of two vectors of floats, rounded to bfloat16.
inline Words to_pairs(Floats first, Floats second) {
  return std::bit_cast<Words>(
      _mm512_cvtne2ps_pbh(std::bit_cast<__m512>(second), std::bit_cast<__m512>(first)));
}
#endif

// W elements of a row from the d-th on: W numbers, or 2 W of them in pairs.
template <typename E, typename Rows>
Words elements(const KeyValues& kv, const Places& at, int64_t n, int64_t d) {
  const auto vector = [&](int64_t feature) {
    Affine affine{};
    if (Rows::kScaled) affine = Rows::affine(kv, at, n, kv.group_of(feature));
    return numbers<Rows>(at.codes[n], feature, affine);
  };
  if constexpr (std::is_same_v<E, float>) {
    return std::bit_cast<Words>(vector(d));
#if defined(__AVX512BF16__)
  } else if constexpr (std::is_same_v<Rows, DenseRows<BFloat16>>) {
    Words pairs;
    std::memcpy(&pairs, at.codes[n] + d * sizeof(Pair), sizeof pairs);
    return pairs;
  } else {  // rows that were unpacked because they end within a vector
    return to_pairs(vector(2 * d), vector(2 * d + W));
#endif
  }
}

inline void store_words(void* to, Words v) { std::memcpy(to, &v, sizeof v); }

inline Words load_words(const void* from) {
  Words v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

// Keys `first` to `first + count` of a block as columns: of panel p, `depth` rows of kPanel keys.
template <typename E, typename Rows>
void pack_keys(const KeyValues& kv, const Places& at, int64_t first, int64_t count, int64_t depth,
               E* panels) {
  for (int64_t n = 0; n < count; n += W) {
    const int64_t column = first + n;
    E* to = panels + column / kPanel * depth * kPanel + column % kPanel;
    for (int64_t d = 0; d < depth; d += W) {
      Words v[W];
      for (int i = 0; i < W; ++i) {
        v[i] = n + i < count ? elements<E, Rows>(kv, at, n + i, d) : Words{};
      }
      transpose(v);
      for (int i = 0; i < W; ++i) store_words(to + (d + i) * kPanel, v[i]);
    }
  }
}

// Values `first` to `first + count` of a block as rows: of panel p, `rows` rows of kPanel features.
template <typename E, typename Rows>
void pack_values(const KeyValues& kv, const Places& at, int64_t first, int64_t count, int64_t dim,
                 int64_t rows, E* panels) {
  for (int64_t n = 0; n < count; n += kDepth<E>) {
    for (int64_t d = 0; d < dim; d += W) {
      E* to = panels + (d / kPanel * rows + (first + n) / kDepth<E>) * kPanel + d % kPanel;
      if constexpr (std::is_same_v<E, float>) {
        store_words(to, elements<float, Rows>(kv, at, n, d));
#if defined(__AVX512BF16__)
      } else {
        const auto half = [&](int64_t i) {
          if (i >= count) return Words{};
          Words bits = elements<float, Rows>(kv, at, i, d);
          if (std::is_same_v<Rows, DenseRows<BFloat16>>) return bits >> 16;  // nothing to round
          return bfloat16_bits(std::bit_cast<Floats>(bits));
        };
        store_words(to, half(n) | half(n + 1) << 16);
#endif
      }
    }
  }
}

}  // namespace tinyllm::TINYLLM_TIER
