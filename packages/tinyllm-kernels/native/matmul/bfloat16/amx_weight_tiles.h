// Weights as tiles of bfloat16: operand B of the matrix unit.
//
// A tile has 16 rows of w and 32 columns. Row p of the tile has the numbers of columns 2 p and
// 2 p + 1 of all 16 rows of w, side by side. Interleaved codes have the same order: a vector has
// one word of codes of each of 16 rows. So a vector of codes is unpacked to whole rows of a tile.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "isa/load_store.h"
#include "isa/transpose.h"
#include "matmul/bfloat16/round.h"
#include "matmul/formats.h"
#include "matmul/integer/words.h"
#include "matmul/interleave.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kTileRows = 16;     // of a tile register
inline constexpr int kStepColumns = 32;  // columns that one product instruction multiplies
static_assert(kTileNumbers == kTileRows * kStepColumns);

// A panel has two tiles of weights for each step of 32 columns.
inline constexpr int kStepNumbers = 2 * kTileNumbers;

// Codes are prefetched this many bytes ahead while they are unpacked.
inline constexpr int kAheadOfCodes = 1024;

// The two positions of codes in a lane from which they are read. One shift moves the two codes of a
// pair to both positions. `kShifts` has the shift to the left for each pair of a word.
//
// Affine codes are read in the mantissa of a float. A low position makes the bias less exact: by 2^-9
// of a step between codes at position 8.
template <Codes C>
struct CodePositions;

template <>
struct CodePositions<Codes::uint4> {
  static constexpr int kFirst = 8, kSecond = 12, kPairs = 4;
  static constexpr int kShifts[kPairs] = {8, 0, -8, -16};
};

template <>
struct CodePositions<Codes::uint8> {
  static constexpr int kFirst = 7, kSecond = 15, kPairs = 2;
  static constexpr int kShifts[kPairs] = {7, -9};
};

template <>
struct CodePositions<Codes::e2m1> {
  static constexpr int kFirst = 0, kSecond = 4, kPairs = 4;
  static constexpr int kShifts[kPairs] = {0, -8, -16, -24};
};

// The weights of one group of 16 rows with codes at bit `Position`. Affine codes are in the mantissa
// of the float 1.0. Such a float is 1 + code 2^(Position - 23), and `scale * float + bias` is the
// weight.
//
// The weights are rounded by cutting off 16 bits. Scales and biases are enlarged by ln 2 / 256, the
// mean of what is cut off. Numbers that bfloat16 can represent remain exact. The error is 2.3e-3 of
// the result, rounding to the nearest has 2.25e-3 and needs two more instructions for 32 weights.
template <Codes C, int Position>
struct GroupWeights {
  GroupWeights() = default;
  explicit GroupWeights(Affines affines) {
    constexpr float enlarged = 1 + 0.69f / 256;
    scale = affines.scales * (enlarged * static_cast<float>(1 << (23 - Position)));
    bias = affines.biases * enlarged - scale;
  }

  Words operator()(Words moved) const {
    constexpr uint32_t mask = ((1u << kBits<C>)-1) << Position;
    constexpr int and_or = 0xEA;  // (a & b) | c
    const __m512i bits = _mm512_ternarylogic_epi32(bit_cast<__m512i>(moved),
                                                   _mm512_set1_epi32(static_cast<int>(mask)),
                                                   _mm512_set1_epi32(0x3f800000), and_or);
    return bit_cast<Words>(bit_cast<Floats>(bits) * scale + bias);
  }

  Floats scale, bias;
};

// bfloat16 represents a number of E2M1 times a power of two exactly.
template <int Position>
struct GroupWeights<Codes::e2m1, Position> {
  GroupWeights() = default;
  explicit GroupWeights(Affines affines) : scale(affines.scales) {}

  Words operator()(Words moved) const { return bit_cast<Words>(e2m1(moved >> Position) * scale); }

  Floats scale;
};

// Returns the upper halves of two vectors of floats, as pairs of bfloat16.
inline __m512i upper_halves(Words first, Words second) {
  // Bytes 2 and 3 of each lane of `first` go to bytes 0 and 1.
  const __m512i bytes = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
  constexpr __mmask64 lower_halves = 0x3333333333333333;
  return _mm512_mask_shuffle_epi8(bit_cast<__m512i>(second), lower_halves, bit_cast<__m512i>(first),
                                  bytes);
}

// Up to 16 rows of w from `first` on, a multiple of 16. None exist if `rows` is not positive.
struct TileOfRows {
  const Weights* w;
  int64_t first, rows;
};

// Floats of memory to pack a tile of rows.
inline int64_t packing_floats(const Weights& w) {
  if (w.mode == Mode::dense) return 0;
  const int64_t deinterleaved = w.interleaved ? deinterleave_floats(w, kTileRows) : 0;
  return deinterleaved + (w.interleaved == W ? 0 : RowSizes(w).floats(kTileRows));
}

// 16 interleaved rows of w, whose codes are unpacked from the first column to the last. T is the
// type of scales and biases. The numbers of rows that do not exist are undefined.
template <Codes C, typename T>
class RowsOfCodes {
  using Positions = CodePositions<C>;

 public:
  static constexpr int kTileVectors = kStepColumns * kBits<C> / 32;  // vectors of codes of a tile
  static constexpr int kVectorRows = Positions::kPairs;  // rows of a tile from a vector of codes
  static_assert(W == kTileRows);

  RowsOfCodes() = default;

  // True if the codes are not copied first.
  static bool reads_in_place(const Weights& w) { return w.interleaved == W; }

  // Interleaves rows that are not. `memory` has `packing_floats` floats.
  RowsOfCodes(const TileOfRows& tile, float* memory) {
    Weights w = *tile.w;
    if (w.interleaved && !reads_in_place(w)) {
      w = deinterleave_rows(w, tile.first, tile.first + tile.rows, memory);
      memory += deinterleave_floats(*tile.w, kTileRows);
    }
    if (!w.interleaved) w = interleave_rows(w, tile.first, tile.rows, memory);
    codes_ = static_cast<const uint32_t*>(w.data) + tile.first * RowSizes(w).words;
    affines_ = RowAffines<T>(w, tile.first);
  }

  [[gnu::always_inline]] void begin_group(int64_t group) {
    const Affines affines = affines_[group];
    first_codes_ = GroupWeights<C, Positions::kFirst>(affines);
    second_codes_ = GroupWeights<C, Positions::kSecond>(affines);
  }

  // Dequantizes the next vector of codes to kVectorRows rows of a tile.
  [[gnu::always_inline]] void pack_vector(uint16_t* to) {
    Words word;
    std::memcpy(&word, codes_, sizeof word);
#pragma GCC unroll 4
    for (int p = 0; p < Positions::kPairs; ++p, to += kStepColumns) {
      const int shift = Positions::kShifts[p];
      const Words moved = shift > 0 ? word << shift : word >> -shift;
      const __m512i pair = upper_halves(first_codes_(moved), second_codes_(moved));
      std::memcpy(to, &pair, sizeof pair);
    }
    codes_ += W;
  }

  // Prefetches the codes some bytes further, to cache `Level`: 3 is the first level, 2 the second.
  template <int Level>
  [[gnu::always_inline]] void prefetch(int64_t bytes) const {
    __builtin_prefetch(reinterpret_cast<const char*>(codes_) + bytes, 0, Level);
  }

 private:
  const uint32_t* codes_ = nullptr;
  RowAffines<T> affines_;
  GroupWeights<C, Positions::kFirst> first_codes_;
  GroupWeights<C, Positions::kSecond> second_codes_;
};

// Returns columns k to k + 31 of row n as pairs of bfloat16. Columns that do not exist are zero.
template <typename Format>
Words step_of_row(const Weights& w, int64_t n, int k) {
  const typename Format::Row row = Format::row(w, n);
  Words pairs = {};
  if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
    const int numbers = std::min(w.columns - k, kStepColumns);
    std::memcpy(&pairs, row + k, numbers * sizeof(BFloat16));
#if defined(TINYLLM_E4M3_PAIRS)
  } else if constexpr (std::is_same_v<Format, Mxfp8>) {
    pairs = mxfp8_group(w, n, k);
#endif
  } else {
    Floats vectors[2] = {};
    for (int i = 0; i < 2; ++i) {
      const int column = k + i * W, numbers = std::min(w.columns - column, W);
      if constexpr (Format::kScaled) {
        if (numbers <= 0) break;
        const Affine affine = Format::affine(w, (n * w.columns + column) / w.group);
        vectors[i] = Format::raw(row, column) * affine.scale + affine.bias;
      } else if (numbers >= W) {
        vectors[i] = Format::raw(row, column);
      } else {
        for (int lane = 0; lane < numbers; ++lane) {
          vectors[i][lane] = Format::one(row, column + lane);
        }
      }
    }
    pairs = to_bfloat16_pairs(vectors[0], vectors[1]);
  }
  return pairs;
}

// Dequantizes and packs columns k to k + 31 of `rows` <= 16 plain rows of w from `first` on. Dense
// numbers of the tile that is `next_rows` further come to the second-level cache meanwhile.
template <typename Format>
void pack_plain(const Weights& w, int64_t first, int64_t rows, int64_t next_rows, int k,
                uint16_t* to) {
  Words tile[kTileRows] = {};
  for (int64_t r = 0; r < rows; ++r) {
    tile[r] = step_of_row<Format>(w, first + r, k);
    if constexpr (!Format::kScaled) {
      const auto* next = reinterpret_cast<const char*>(Format::row(w, first + r + next_rows) + k);
      for (int64_t i = 0; i < int64_t{kStepColumns * sizeof(*Format::row(w, 0))}; i += 64) {
        __builtin_prefetch(next + i, 0, 2);
      }
    }
  }
  transpose(tile);
  std::memcpy(to, tile, sizeof tile);
}

}  // namespace tinyllm::TINYLLM_ISA
