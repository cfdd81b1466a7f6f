// Rows side by side, which is how products in integers want them: of W rows first the first words
// of codes, then the second ones, and so on; scales and biases likewise. The weights of a model
// that is loaded lie so for good (`prepare` of the backend), where memory is then read from one end to the
// other. Others are interleaved on the way to such a product, and those for good are put one after
// the other on the way to any other: to one of another instruction set as well, whose vectors have
// another W.
#pragma once

#include <algorithm>
#include <cstring>

#include "matmul/linear.h"
#include "isa/transpose.h"
#include "isa/vectors.h"
#include "types.h"

namespace tinyllm::TINYLLM_TIER {

using Half = uint16_t;  // of a scale no more matters here than that it has 16 bits

// Words of codes in a row, and groups of them. A scale and a bias take a word together.
struct RowSizes {
  explicit RowSizes(const Weights& w)
      : words(int64_t{w.columns} * w.bits / 32), groups(w.columns / w.group) {}

  int64_t room(int64_t rows) const { return rows * (words + groups); }

  int64_t words, groups;
};

// Where the parts of some rows go, and the weight that has them there from row `first` on.
struct Placed {
  Placed(const Weights& w, int64_t first, int64_t rows, int interleaved, float* room)
      : weights(w) {
    const RowSizes sizes(w);
    codes = reinterpret_cast<uint32_t*>(room);
    scales = reinterpret_cast<Half*>(codes + rows * sizes.words);
    biases = scales + rows * sizes.groups;
    weights.data = codes - first * sizes.words;
    weights.scales = scales - first * sizes.groups;
    weights.biases = biases - first * sizes.groups;
    weights.interleaved = interleaved;
  }

  uint32_t* codes;
  Half *scales, *biases;
  Weights weights;
};

// Up to W rows of w from `first` on, side by side. What is missing of W is the last one again.
inline Weights interleaved_block(const Weights& w, int64_t first, int64_t rows, float* room) {
  const RowSizes sizes(w);
  Placed to(w, first, W, W, room);
  const auto* codes = static_cast<const uint32_t*>(w.data) + first * sizes.words;
  for (int64_t k = 0; k < sizes.words; k += W) {
    Words words[W];
    for (int64_t r = 0; r < W; ++r) {
      std::memcpy(&words[r], codes + std::min(r, rows - 1) * sizes.words + k, sizeof(Words));
    }
    transpose(words);
    std::memcpy(to.codes + k * W, words, sizeof words);
  }
  const auto* scales = static_cast<const Half*>(w.scales) + first * sizes.groups;
  const auto* biases = static_cast<const Half*>(w.biases) + first * sizes.groups;
  for (int64_t r = 0; r < W; ++r) {
    for (int64_t g = 0, at = std::min(r, rows - 1) * sizes.groups; g < sizes.groups; ++g, ++at) {
      to.scales[g * W + r] = scales[at], to.biases[g * W + r] = biases[at];
    }
  }
  return to.weights;
}

// Rows `first` to `last` of interleaved w one after the other.
inline Weights plain_rows(const Weights& w, int64_t first, int64_t last, float* room) {
  const RowSizes sizes(w);
  const int64_t side = w.interleaved, begin = first / side * side;
  const int64_t end = (last + side - 1) / side * side;
  Placed to(w, begin, end - begin, 0, room);
  const auto* codes = static_cast<const uint32_t*>(w.data);
  const auto* scales = static_cast<const Half*>(w.scales);
  const auto* biases = static_cast<const Half*>(w.biases);
  for (int64_t n = begin; n < end; n += side) {
    for (int64_t k = 0; side != W && k < sizes.words * side; ++k) {
      to.codes[(n - begin + k % side) * sizes.words + k / side] = codes[n * sizes.words + k];
    }
    for (int64_t k = 0; side == W && k < sizes.words; k += W) {
      Words words[W];
      std::memcpy(words, codes + n * sizes.words + k * W, sizeof words);
      transpose(words);
      for (int64_t r = 0; r < W; ++r) {
        std::memcpy(to.codes + (n - begin + r) * sizes.words + k, &words[r], sizeof(Words));
      }
    }
    for (int64_t r = 0; r < side; ++r) {
      for (int64_t g = 0; g < sizes.groups; ++g) {
        const int64_t from = n * sizes.groups + g * side + r, at = (n - begin + r) * sizes.groups + g;
        to.scales[at] = scales[from], to.biases[at] = biases[from];
      }
    }
  }
  return to.weights;
}

// Words of room for so many rows of interleaved weights, wherever they begin.
inline int64_t plain_room(const Weights& w, int64_t rows) {
  const int64_t side = w.interleaved;
  return RowSizes(w).room((rows + side - 2) / side * side + side);
}

}  // namespace tinyllm::TINYLLM_TIER
