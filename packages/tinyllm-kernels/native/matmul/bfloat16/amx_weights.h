// Rows of w in bfloat16, a block at a time, for the matrix unit.
//
// The unit works on its own while vectors do something else. So there is room for two blocks: while
// one is multiplied the next is unpacked, row by row between the instructions of the first.
#pragma once

#include <algorithm>
#include <bit>

#include "matmul/bfloat16/panel.h"
#include "types.h"
#include "isa/vectors.h"
#include "matmul/formats.h"

namespace tinyllm::TINYLLM_TIER {

// Two blocks are 32 KB, which stay in a first-level cache of 48 while tokens stream past them.
inline constexpr int kBlockRows = 32, kBlockColumns = 256;

#if defined(__AVX512BF16__)

// The blocks of some rows of w: those of the first 32 rows, from the first column to the last, then
// those of the next 32. What is missing in the last ones is zero.
template <typename Format>
class WeightBlocks {
 public:
  // `room` is for two blocks.
  WeightBlocks(const Weights& w, int64_t first_row, int64_t last_row, uint16_t* room)
      : w_(w),
        group_bits_(std::countr_zero(static_cast<unsigned>(std::max(w.group, 1)))),
        groups_(w.columns >> group_bits_),
        ahead_(int64_t{kBlockRows} * w.columns / 2),
        first_row_(first_row),
        last_row_(last_row),
        next_(room),
        other_(room + kBlockRows * kBlockColumns) {}

  // The next block, the rest of it unpacked first: rows of kBlockColumns numbers.
  const uint16_t* take() {
    unpack(kBlockRows);
    const uint16_t* block = next_;
    std::swap(next_, other_);
    row_ = 0;
    first_column_ += kBlockColumns;
    if (first_column_ >= w_.columns) first_column_ = 0, first_row_ += kBlockRows;
    if (first_row_ >= last_row_) row_ = kBlockRows;
    return block;
  }

  // Unpacks so many more rows of the block after it.
  void unpack(int64_t rows) {
    for (; rows > 0 && row_ < kBlockRows; --rows, ++row_) {
      uint16_t* to = next_ + row_ * kBlockColumns;
      const int64_t n = first_row_ + row_;
      const int depth = n < last_row_ ? std::min(kBlockColumns, w_.columns - first_column_) : 0;
      unpack_row(n, depth, to);
      std::fill_n(to + depth, kBlockColumns - depth, 0);
    }
  }

 private:
  void unpack_row(int64_t n, int depth, uint16_t* to) const {
    const typename Format::Row row = Format::row(w_, n);
    if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
      std::memcpy(to, row + first_column_, depth * sizeof *to);
    } else if constexpr (Format::kScaled) {
      // A group is a power of two of numbers, so that blocks as well as rows are whole groups.
      const int group = w_.group;
      for (int i = 0; i < depth; i += group) {
        const int k = first_column_ + i;
        const Affine affine = Format::affine(w_, n * groups_ + (k >> group_bits_));
        unpack_group(row, k, group, affine, to + i);
      }
    } else {
      int i = 0;
      for (; i + W <= depth; i += W) put_numbers(Format::raw(row, first_column_ + i), to + i);
      for (; i < depth; ++i) {
        to[i] = from_float<BFloat16>(Format::one(row, first_column_ + i)).bits;
      }
    }
  }

  void unpack_group(const uint8_t* row, int k, int group, Affine affine, uint16_t* to) const {
    if constexpr (std::is_same_v<Format, Coded<Mode::affine, 4>>) {
      const __m512i numbers = numbers_of(affine);
      const uint8_t* codes = row + static_cast<unsigned>(k) / 2;
      __builtin_prefetch(codes + ahead_, 0, 2);  // to the second-level cache
      for (int i = 0; i < group; i += 2 * W, codes += W) {
        _mm512_storeu_si512(to + i, look_up(codes, numbers));
      }
    } else {
      for (int i = 0; i < group; i += W) {
        put_numbers(Format::raw(row, k + i) * affine.scale + affine.bias, to + i);
      }
    }
  }

  static void put_numbers(Floats v, uint16_t* to) {
    const Shorts numbers = rounded(v);
    std::memcpy(to, &numbers, sizeof numbers);
  }

  const Weights& w_;
  const int group_bits_;  // groups are powers of two
  const int64_t groups_;  // in a row
  const int64_t ahead_;   // from codes of 4 bits to those of the same row of the next rows
  int64_t first_row_;
  const int64_t last_row_;
  int first_column_ = 0, row_ = 0;  // where the next block begins, and its next row
  uint16_t *next_, *other_;
};

#endif

}  // namespace tinyllm::TINYLLM_TIER
