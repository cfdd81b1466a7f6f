// Interleaved rows of w: the layout that integer products read.
//
// R rows are interleaved word by word: first word 0 of codes of all R rows, then word 1, and so on.
// Scales and biases are interleaved in the same way, number by number. Interleaving keeps the size,
// so groups of R rows begin where they would begin without it.
//
// Integer kernels read W interleaved rows, one in each lane. A model's weights are interleaved
// permanently when it is loaded (`prepare` of the backend). Memory is then read sequentially. Other
// weights are interleaved part by part, before each product. For kernels that read plain rows,
// interleaved rows are separated. The number of interleaved rows may be the W of another
// instruction set.
#pragma once

#include <algorithm>
#include <cstring>

#include "isa/transpose.h"
#include "isa/vectors.h"
#include "types.h"

namespace tinyllm::TINYLLM_TIER {

using Bits16 = uint16_t;  // a scale or bias of any 16-bit type

// Sizes of one row. Rows of codes are whole 32-bit words.
struct RowSizes {
  explicit RowSizes(const Weights& w)
      : words(int64_t{w.columns} * w.bits / 32), groups(w.columns / w.group) {}

  // Floats of memory for some rows: a scale and a bias take one float together.
  int64_t floats(int64_t rows) const { return rows * (words + groups); }

  int64_t words, groups;
};

// Some rows of w, copied to `memory` in another layout. The copy has `RowSizes::floats(rows)`
// floats. `weights` describes the copy. Its rows keep their numbers in w, so only rows `first` to
// `first + rows` exist.
struct RowsCopy {
  RowsCopy(const Weights& w, int64_t first, int64_t rows, int interleaved, float* memory)
      : weights(w) {
    const RowSizes sizes(w);
    codes = reinterpret_cast<uint32_t*>(memory);
    scales = reinterpret_cast<Bits16*>(codes + rows * sizes.words);
    biases = scales + rows * sizes.groups;
    weights.data = codes - first * sizes.words;
    weights.scales = scales - first * sizes.groups;
    weights.biases = biases - first * sizes.groups;
    weights.interleaved = interleaved;
  }

  uint32_t* codes;
  Bits16 *scales, *biases;
  Weights weights;
};

// Interleaves W plain rows of w from `first` on, of which `rows` exist. The last existing row is
// repeated for the missing ones.
inline Weights interleave_rows(const Weights& w, int64_t first, int64_t rows, float* memory) {
  const RowSizes sizes(w);
  RowsCopy copy(w, first, W, W, memory);
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * sizes.words;
  for (int64_t k = 0; k < sizes.words; k += W) {
    Words words[W];
    for (int64_t r = 0; r < W; ++r) {
      std::memcpy(&words[r], codes + std::min(r, rows - 1) * sizes.words + k, sizeof(Words));
    }
    transpose(words);
    std::memcpy(copy.codes + k * W, words, sizeof words);
  }
  const auto* scales = static_cast<const Bits16*>(w.scales) + first * sizes.groups;
  const auto* biases = static_cast<const Bits16*>(w.biases) + first * sizes.groups;
  for (int64_t r = 0; r < W; ++r) {
    const int64_t row = std::min(r, rows - 1) * sizes.groups;
    for (int64_t g = 0; g < sizes.groups; ++g) {
      copy.scales[g * W + r] = scales[row + g];
      copy.biases[g * W + r] = biases[row + g];
    }
  }
  return copy.weights;
}

// Separates `count` interleaved rows from `codes` on. Writes plain rows of `words` words.
inline void separate_codes(const uint32_t* codes, int64_t count, int64_t words, uint32_t* to) {
  if (count != W) {
    for (int64_t k = 0; k < words * count; ++k) to[k % count * words + k / count] = codes[k];
    return;
  }
  for (int64_t k = 0; k < words; k += W) {
    Words square[W];
    std::memcpy(square, codes + k * W, sizeof square);
    transpose(square);
    for (int64_t r = 0; r < W; ++r) std::memcpy(to + r * words + k, &square[r], sizeof(Words));
  }
}

// Separates interleaved rows `first` to `last` of w. `memory` has `separate_rows_floats` floats.
inline Weights separate_rows(const Weights& w, int64_t first, int64_t last, float* memory) {
  const RowSizes sizes(w);
  const int64_t group_rows = w.interleaved;
  const int64_t begin = first / group_rows * group_rows;
  const int64_t end = (last + group_rows - 1) / group_rows * group_rows;
  RowsCopy copy(w, begin, end - begin, 0, memory);
  const auto* codes = static_cast<const uint32_t*>(w.data);
  const auto* scales = static_cast<const Bits16*>(w.scales);
  const auto* biases = static_cast<const Bits16*>(w.biases);
  for (int64_t n = begin; n < end; n += group_rows) {
    separate_codes(codes + n * sizes.words, group_rows, sizes.words,
                   copy.codes + (n - begin) * sizes.words);
    for (int64_t r = 0; r < group_rows; ++r) {
      for (int64_t g = 0; g < sizes.groups; ++g) {
        const int64_t from = n * sizes.groups + g * group_rows + r;
        const int64_t to = (n - begin + r) * sizes.groups + g;
        copy.scales[to] = scales[from];
        copy.biases[to] = biases[from];
      }
    }
  }
  return copy.weights;
}

// Floats of memory for `separate_rows` of any `rows` consecutive rows.
inline int64_t separate_rows_floats(const Weights& w, int64_t rows) {
  const int64_t group_rows = w.interleaved;
  return RowSizes(w).floats((rows + group_rows - 2) / group_rows * group_rows + group_rows);
}

}  // namespace tinyllm::TINYLLM_TIER
