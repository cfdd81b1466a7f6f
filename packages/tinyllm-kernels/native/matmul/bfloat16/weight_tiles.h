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

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kTileRows = 16;     // of a tile register
inline constexpr int kStepColumns = 32;  // columns that one product instruction multiplies
inline constexpr int kTileNumbers = kTileRows * kStepColumns;

// A panel has two tiles of weights for each step of 32 columns.
inline constexpr int kStepNumbers = 2 * kTileNumbers;

// Codes are prefetched this many bytes ahead while they are unpacked.
inline constexpr int kAheadOfCodes = 1024;

// Asks for a line that is written later. Stores wait for their lines in order.
inline void prefetch_to_write(const void* line) {
  asm volatile("prefetchw (%0)" ::"r"(line) : "memory");
}

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

// Floats of memory to unpack a tile of rows.
inline int64_t unpack_floats(const Weights& w) {
  if (w.mode == Mode::dense) return 0;
  const int64_t separated = w.interleaved ? separate_rows_floats(w, kTileRows) : 0;
  return separated + (w.interleaved == W ? 0 : RowSizes(w).floats(kTileRows));
}

// Unpacks panels of interleaved codes, a vector of codes at a time. So the caller can do it between
// the products of another panel, and the processor computes both at once. The numbers of rows that
// do not exist are undefined. T is the type of scales and biases.
//
// A loop of products copies an object of this class to a local variable, because the compiler
// assumes that tile instructions change other memory.
template <Codes C, typename T>
class CodeUnpacker {
 public:
  // Begins a panel of two tiles of rows. `memory` has `unpack_floats` floats for each. The vectors
  // of codes will be spread over `calls` of `step`.
  void begin(const TileOfRows (&tiles)[2], uint16_t* panel, float* memory, int64_t calls) {
    const Weights& w = *tiles[0].w;
    group_tiles_ = w.group / kStepColumns, groups_ = w.columns / w.group;
    has_next_ = tiles[1].rows > 0;
    if (has_next_) next_ = in_lanes(tiles[1], panel + kTileNumbers, memory);
    rows_ = in_lanes(tiles[0], panel, memory + unpack_floats(*tiles[1].w));
    const int64_t vectors = (has_next_ ? 2 : 1) * groups_ * group_tiles_ * kTileVectors;
    burst_ = static_cast<int>(calls > 0 ? (vectors + calls - 1) / calls : 0);
    period_ = static_cast<int>(std::max<int64_t>(calls / vectors, 1));
    wait_ = period_;
    is_done_ = false;
    group_ = 0;
    begin_group();
  }

  // Unpacks the vectors that are due.
  [[gnu::always_inline]] void step() {
    if (--wait_ > 0) return;
    wait_ = period_;
    for (int n = burst_; n > 0 && !is_done_; --n) unpack_vector();
  }

  // Unpacks the rest of the panel.
  void finish() {
    while (!is_done_) unpack_vector();
  }

 private:
  using Positions = CodePositions<C>;
  static constexpr int kTileVectors = kStepColumns * kBits<C> / 32;

  // 16 interleaved rows, and the first of their tiles, which are kStepNumbers apart.
  struct Rows {
    const uint32_t* codes = nullptr;
    RowAffines<T> affines;
    uint16_t* to = nullptr;
  };

  // Interleaves rows that are not.
  static Rows in_lanes(const TileOfRows& tile, uint16_t* to, float* memory) {
    static_assert(W == kTileRows);
    Weights w = *tile.w;
    if (w.interleaved && w.interleaved != W) {
      w = separate_rows(w, tile.first, tile.first + tile.rows, memory);
      memory += separate_rows_floats(*tile.w, kTileRows);
    }
    if (!w.interleaved) w = interleave_rows(w, tile.first, tile.rows, memory);
    const auto* codes = static_cast<const uint32_t*>(w.data) + tile.first * RowSizes(w).words;
    return {codes, RowAffines<T>(w, tile.first), to};
  }

  [[gnu::always_inline]] void begin_group() {
    const Affines affines = rows_.affines[group_];
    first_codes_ = GroupWeights<C, Positions::kFirst>(affines);
    second_codes_ = GroupWeights<C, Positions::kSecond>(affines);
    tiles_left_ = group_tiles_, vectors_left_ = kTileVectors;
  }

  [[gnu::always_inline]] void unpack_vector() {
    Words word;
    std::memcpy(&word, rows_.codes, sizeof word);
    __builtin_prefetch(reinterpret_cast<const char*>(rows_.codes) + kAheadOfCodes);
#pragma GCC unroll 4
    for (int p = 0; p < Positions::kPairs; ++p) {
      const int shift = Positions::kShifts[p];
      const Words moved = shift > 0 ? word << shift : word >> -shift;
      const __m512i pair = upper_halves(first_codes_(moved), second_codes_(moved));
      uint16_t* to = rows_.to + p * 2 * W;
      std::memcpy(to, &pair, sizeof pair);
      prefetch_to_write(to + 2 * kStepNumbers);
    }
    rows_.codes += W;
    rows_.to += Positions::kPairs * 2 * W;
    if (--vectors_left_ == 0) end_tile();
  }

  [[gnu::always_inline]] void end_tile() {
    vectors_left_ = kTileVectors;
    rows_.to += kStepNumbers - kTileNumbers;
    if (--tiles_left_ > 0) return;
    if (++group_ == groups_) {
      is_done_ = !has_next_;
      if (is_done_) return;
      rows_ = next_;
      has_next_ = false;
      group_ = 0;
    }
    begin_group();
  }

  Rows rows_, next_;  // `next_` if `has_next_`
  bool has_next_ = false, is_done_ = true;
  int64_t group_ = 0, groups_ = 0;
  int group_tiles_ = 0, tiles_left_ = 0, vectors_left_ = 0;
  int burst_ = 0, period_ = 1, wait_ = 1;
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
  } else {
    Floats halves[2] = {};
    for (int i = 0; i < 2; ++i) {
      const int column = k + i * W, numbers = std::min(w.columns - column, W);
      if constexpr (Format::kScaled) {
        if (numbers <= 0) break;
        const Affine affine = Format::affine(w, (n * w.columns + column) / w.group);
        halves[i] = Format::raw(row, column) * affine.scale + affine.bias;
      } else if (numbers >= W) {
        halves[i] = Format::raw(row, column);
      } else {
        for (int lane = 0; lane < numbers; ++lane) {
          halves[i][lane] = Format::one(row, column + lane);
        }
      }
    }
    pairs = bit_cast<Words>(
        _mm512_cvtne2ps_pbh(bit_cast<__m512>(halves[1]), bit_cast<__m512>(halves[0])));
  }
  return pairs;
}

// Unpacks `rows` <= 16 plain rows of w from `first` on.
template <typename Format>
void unpack_plain(const Weights& w, int64_t first, int64_t rows, uint16_t* to) {
  for (int k = 0; k < w.columns; k += kStepColumns, to += kStepNumbers) {
    Words tile[kTileRows] = {};
    for (int64_t r = 0; r < rows; ++r) tile[r] = step_of_row<Format>(w, first + r, k);
    transpose(tile);
    std::memcpy(to, tile, sizeof tile);
  }
}

// Unpacks panels of all other formats. Has nothing to do between products.
class PlainUnpacker {
 public:
  void begin(const TileOfRows (&tiles)[2], uint16_t* panel, float* memory, int64_t) {
    for (const auto& [w, first, rows] : tiles) {
      if (rows > 0) unpack(*w, first, rows, panel, memory);
      panel += kTileNumbers;
    }
  }

  void step() {}
  void finish() {}

 private:
  static void unpack(const Weights& w, int64_t first, int64_t rows, uint16_t* to, float* memory) {
    Weights plain = w;
    if (w.interleaved) plain = separate_rows(w, first, first + rows, memory);
    with_format(plain, [&]<typename Format>() { unpack_plain<Format>(plain, first, rows, to); });
  }
};

// Calls `work.operator()<Unpacker>()` with the class that unpacks w.
template <typename Work>
void with_unpacker(const Weights& w, Work work) {
  if (!supports_integers(w)) return work.template operator()<PlainUnpacker>();
  with_codes(w, [&]<Codes C, typename T>() { work.template operator()<CodeUnpacker<C, T>>(); });
}

}  // namespace tinyllm::TINYLLM_TIER
