// Interleaved rows of w: the layout that integer products read.
//
// R rows are interleaved word by word: first word 0 of codes of all R rows, then word 1, and so on.
// Scales and biases are interleaved in the same way, number by number. Interleaving keeps the size,
// so groups of R rows begin where they would begin without it.
//
// Integer kernels read W interleaved rows, one in each lane. A model's weights are interleaved
// permanently when it is loaded (`prepare` of the backend). Memory is then read sequentially. Other
// weights are interleaved part by part, before each product. For kernels that read plain rows,
// interleaved rows are deinterleaved. The number of interleaved rows may be the W of another
// instruction set.
#pragma once

#include <algorithm>
#include <cstring>

#include "ceil_div.h"
#include "isa/transpose.h"
#include "isa/vectors.h"
#include "types.h"

namespace tinyllm::TINYLLM_ISA {

// Sizes of one row. Rows of codes are whole 32-bit words. A scale has 16 bits, or 8 in modes mxfp4
// and nvfp4, which have no biases.
struct RowSizes {
  explicit RowSizes(const Weights& w)
      : words(int64_t{w.columns} * w.bits / 32), groups(w.columns / w.group) {}

  // Floats of memory for some rows: a scale and a bias take one float together, at most.
  int64_t floats(int64_t rows) const { return rows * (words + groups); }

  int64_t words, groups;
};

// Some rows of w, copied to `memory` in another layout. The copy has `RowSizes::floats(rows)`
// floats. `weights` describes the copy. Its rows have the same indices as in w, so only rows
// `first` to `first + rows` exist.
struct RowsCopy {
  RowsCopy(const Weights& w, int64_t first, int64_t rows, int interleaved, float* memory)
      : weights(w) {
    const RowSizes sizes(w);
    codes = reinterpret_cast<uint32_t*>(memory);
    weights.data = codes - first * sizes.words;
    const int64_t row_bytes = sizes.groups * (w.mode == Mode::affine ? 2 : 1);
    weights.scales = scales = reinterpret_cast<char*>(codes + rows * sizes.words) - first * row_bytes;
    if (w.biases) weights.biases = biases = scales + rows * row_bytes;
    weights.interleaved = interleaved;
  }

  // Calls `copy(from, to)` with the scales of w and of the copy, then with their biases.
  template <typename Copy>
  void copy_affines(const Weights& w, Copy copy) const {
    const auto copy_numbers = [&]<typename T>(T*) {
      copy(static_cast<const T*>(w.scales), reinterpret_cast<T*>(scales));
      if (w.biases) copy(static_cast<const T*>(w.biases), reinterpret_cast<T*>(biases));
    };
    if (w.mode == Mode::affine) return copy_numbers(static_cast<uint16_t*>(nullptr));
    copy_numbers(static_cast<uint8_t*>(nullptr));
  }

  uint32_t* codes;
  char *scales, *biases = nullptr;  // as in `weights`
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
  copy.copy_affines(w, [&](const auto* from, auto* to) {
    from += first * sizes.groups, to += first * sizes.groups;
    for (int64_t r = 0; r < W; ++r) {
      const int64_t row = std::min(r, rows - 1) * sizes.groups;
      for (int64_t g = 0; g < sizes.groups; ++g) to[g * W + r] = from[row + g];
    }
  });
  return copy.weights;
}

// Deinterleaves `count` rows from `codes` on. Writes plain rows of `words` words.
inline void deinterleave_codes(const uint32_t* codes, int64_t count, int64_t words, uint32_t* to) {
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

// Deinterleaves rows `first` to `last` of w. `memory` has `deinterleave_floats` floats.
inline Weights deinterleave_rows(const Weights& w, int64_t first, int64_t last, float* memory) {
  const RowSizes sizes(w);
  const int64_t group_rows = w.interleaved;
  const int64_t begin = first / group_rows * group_rows;
  const int64_t end = round_up(last, group_rows);
  RowsCopy copy(w, begin, end - begin, 0, memory);
  const auto* codes = static_cast<const uint32_t*>(w.data);
  for (int64_t n = begin; n < end; n += group_rows) {
    deinterleave_codes(codes + n * sizes.words, group_rows, sizes.words,
                       copy.codes + (n - begin) * sizes.words);
  }
  copy.copy_affines(w, [&](const auto* from, auto* to) {
    from += begin * sizes.groups, to += begin * sizes.groups;
    for (int64_t n = 0; n < end - begin; ++n) {
      for (int64_t g = 0; g < sizes.groups; ++g, ++to) {
        const int64_t group = n / group_rows * sizes.groups + g;
        *to = from[group * group_rows + n % group_rows];
      }
    }
  });
  return copy.weights;
}

// Floats of memory for `deinterleave_rows` of any `rows` consecutive rows.
inline int64_t deinterleave_floats(const Weights& w, int64_t rows) {
  const int64_t group_rows = w.interleaved;
  return RowSizes(w).floats((rows + group_rows - 2) / group_rows * group_rows + group_rows);
}

}  // namespace tinyllm::TINYLLM_ISA
