// Keys and values packed as operands B of the matrix unit.
//
// A panel has 32 consecutive keys. Its tiles of 1 KB are in the order in which products read them:
//
//   keys    [plane][step][2][16 pairs of features][16 keys]
//   values  [step][2][16 pairs of keys][16 features]
//
// A step is 32 features. Keys that are bfloat16 have one plane. Other keys have a second plane: the
// remainders of their rounding. Rounding alone would shift a score of 500 by one.
#pragma once

#include "attention/kv_rows.h"
#include "ceil_div.h"
#include "isa/tile_registers.h"
#include "isa/transpose.h"

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_AMX)

inline constexpr int64_t kPanelKeys = 32, kStepFeatures = 32;

inline int64_t key_planes(const AttentionTask& t) {
  return t.k.mode == Mode::dense && t.k.type == Type::bfloat16 ? 1 : 2;
}

// bfloat16 numbers of a panel of values. A panel of keys has as many for each plane.
inline int64_t panel_numbers(const AttentionTask& t) { return kPanelKeys * t.padded_dim(); }

// 32 features of a row in bfloat16, and the remainders of rounding them.
struct StepFeatures {
  __m512i rounded, remainders;
};

// The lanes of infinities and NaN.
inline __mmask32 non_finite_lanes(__m512i bfloat16s) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  return _mm512_cmpeq_epi16_mask(_mm512_and_si512(bfloat16s, exponent), exponent);
}

// Loads the features of row n from feature d on, with zeros after feature `dim`.
template <typename Rows>
StepFeatures load_step(const KeyValues& kv, const RowPointers& rows, int64_t n, int64_t d,
                       int64_t dim) {
  if constexpr (std::is_same_v<Rows, DenseRows<BFloat16>>) {
    const __mmask32 lanes = dim - d >= kStepFeatures ? ~0u : (1u << (dim - d)) - 1;
    return {_mm512_maskz_loadu_epi16(lanes, rows.codes[n] + d * sizeof(BFloat16)), __m512i{}};
  } else {
    Affine affine{};  // groups of formats that are read in place have 32 features or more
    if (Rows::kScaled) affine = Rows::affine(kv, rows, n, kv.group_of(d));
    const Floats first = load_features<Rows>(rows.codes[n], d, affine);
    const Floats second = load_features<Rows>(rows.codes[n], d + W, affine);
    const __m512i rounded = bit_cast<__m512i>(to_bfloat16_pairs(first, second));
    const __m256i low = _mm512_castsi512_si256(rounded);
    const __m256i high = _mm512_extracti64x4_epi64(rounded, 1);
    const auto as_floats = [](__m256i numbers) {
      return bit_cast<Floats>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(numbers), 16));
    };
    const __m512i remainders =
        bit_cast<__m512i>(to_bfloat16_pairs(first - as_floats(low), second - as_floats(high)));
    return {rounded, _mm512_maskz_mov_epi16(~non_finite_lanes(rounded), remainders)};
  }
}

// Calls `work(format, rows)` with a format that `load_step` reads. `scratch` has kRowBatch rows of
// `padded_dim()` floats.
template <typename Work>
void with_step_rows(const AttentionTask& t, const KeyValues& kv, const RowPointers& rows,
                    int64_t count, float* scratch, Work work) {
  if (kv.mode == Mode::dense && kv.type == Type::bfloat16) {
    return work(DenseRows<BFloat16>(), rows);  // of any number of features
  }
  with_fast_rows(t, kv, rows, count, kStepFeatures, scratch, work);
}

// Packs `count` keys. Missing keys up to a whole panel are zero.
template <typename Rows>
void pack_key_panels(const AttentionTask& t, const RowPointers& keys, int64_t count,
                     uint16_t* panels) {
  const int64_t plane = panel_numbers(t), planes = key_planes(t);
  const int64_t padded = round_up(count, kPanelKeys);
  for (int64_t n = 0; n < padded; n += W) {
    uint16_t* panel = panels + n / kPanelKeys * planes * plane + n % kPanelKeys / W * kTileNumbers;
    for (int64_t d = 0; d < t.dim; d += kStepFeatures) {
      Words rounded[W], remainders[W];
      for (int i = 0; i < W; ++i) {
        const StepFeatures features =
            n + i < count ? load_step<Rows>(t.k, keys, n + i, d, t.dim) : StepFeatures{};
        rounded[i] = bit_cast<Words>(features.rounded);
        remainders[i] = bit_cast<Words>(features.remainders);
      }
      uint16_t* tile = panel + d / kStepFeatures * 2 * kTileNumbers;
      transpose(rounded);
      for (int i = 0; i < W; ++i) std::memcpy(tile + i * 2 * W, &rounded[i], sizeof rounded[i]);
      if constexpr (!std::is_same_v<Rows, DenseRows<BFloat16>>) {
        transpose(remainders);
        for (int i = 0; i < W; ++i) {
          std::memcpy(tile + plane + i * 2 * W, &remainders[i], sizeof remainders[i]);
        }
      }
    }
  }
}

// Packs `count` values. Missing values up to a whole panel are zero. Infinities and NaN are
// replaced by zero, because a row that does not attend to them multiplies them by zero. Sets
// `non_finite` of each panel that had some.
template <typename Rows>
void pack_value_panels(const AttentionTask& t, const RowPointers& values, int64_t count,
                       uint16_t* panels, bool* non_finite) {
  // Numbers i of two rows become neighbors: first of features 0 to 15, then of features 16 to 31.
  __m512i first_half, second_half;
  uint16_t indices[2][2 * W];
  for (uint16_t i = 0; i < W; ++i) {
    indices[0][2 * i] = i, indices[0][2 * i + 1] = 2 * W + i;
    indices[1][2 * i] = W + i, indices[1][2 * i + 1] = 3 * W + i;
  }
  std::memcpy(&first_half, indices[0], sizeof first_half);
  std::memcpy(&second_half, indices[1], sizeof second_half);
  const int64_t padded = round_up(count, kPanelKeys);
  for (int64_t n = 0; n < padded; n += 2) {
    uint16_t* panel = panels + n / kPanelKeys * panel_numbers(t) + n % kPanelKeys * W;
    __mmask32 found = 0;
    const auto load_finite = [&](int64_t row, int64_t d) {
      if (row >= count) return __m512i{};
      const __m512i numbers = load_step<Rows>(t.v, values, row, d, t.dim).rounded;
      const __mmask32 lanes = non_finite_lanes(numbers);
      found |= lanes;
      return _mm512_maskz_mov_epi16(~lanes, numbers);
    };
    for (int64_t d = 0; d < t.dim; d += kStepFeatures) {
      const __m512i a = load_finite(n, d), b = load_finite(n + 1, d);
      uint16_t* tile = panel + d / kStepFeatures * 2 * kTileNumbers;
      _mm512_storeu_si512(tile, _mm512_permutex2var_epi16(a, first_half, b));
      _mm512_storeu_si512(tile + kTileNumbers, _mm512_permutex2var_epi16(a, second_half, b));
    }
    if (n % kPanelKeys == 0) non_finite[n / kPanelKeys] = false;
    if (found) non_finite[n / kPanelKeys] = true;
  }
}

#endif  // TINYLLM_AMX

}  // namespace tinyllm::TINYLLM_ISA
