// The operands of products with codes, as 16-bit integers: queries, and weights times scales.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/decode/codes.h"
#include "attention/kv_rows.h"
#include "attention/plan.h"
#include "ceil_div.h"

namespace tinyllm::TINYLLM_ISA {

// The smallest group, and the largest whose products of a query and codes do not exceed 31 bits.
inline constexpr int kLeastGroup = 32, kMostGroup = 256;
static_assert(kMostGroup * kMaxInteger * 255 < 0x1p31);

// Quantization groups of a row, at most.
inline int64_t most_groups(const AttentionTask& t) { return ceil_div(t.dim, kLeastGroup); }

// Sets the numbers after `count` to zero, up to a whole vector.
inline void zero_tail(float* numbers, int64_t count) {
  std::fill(numbers + count, numbers + round_up(count, W), 0.0f);
}

// The scales and biases of a batch of keys or values as floats.
struct BatchScales {
  static int64_t floats(const AttentionTask& t) { return 2 * most_groups(t) * kRowBatch; }

  BatchScales(const AttentionTask& t, const KeyValues& kv, float* memory)
      : groups(t.dim / kv.group), scales(memory), biases(memory + groups * kRowBatch) {}

  // Reads those of rows `first` to `first + count` of one head of one request. Rows up to a whole
  // vector have zeros.
  void read(const AttentionTask& t, const KeyValues& kv, const QueryTile& tile, int64_t first,
            int64_t count) const {
    for_pages(t, tile.request, first, count,
              [&](int64_t n, int64_t end, int64_t page, int64_t slot) {
                const int64_t head = tile.kv_head;
                read_run(kv.scales.at(page, head, slot), kv.scales.strides[2], end - n, scales + n);
                read_run(kv.biases.at(page, head, slot), kv.biases.strides[2], end - n, biases + n);
              });
    for (int64_t g = 0; g < 2 * groups; ++g) zero_tail(scales + g * kRowBatch, count);
  }

  const int64_t groups;
  float *const scales, *const biases;  // groups x kRowBatch

 private:
  // Reads the groups of `count` rows, which are `stride` bytes apart. Rows of two groups side by
  // side are read W at a time.
  void read_run(const char* from, int64_t stride, int64_t count, float* to) const {
    int64_t n = 0;
    if (groups == 2 && stride == 2 * sizeof(BFloat16)) {
      for (; n + W <= count; n += W) {
        const Words pairs = load_words(from + n * stride);
        store(to + n, bit_cast<Floats>(pairs << 16));
        store(to + kRowBatch + n, bit_cast<Floats>(pairs & 0xffff0000));
      }
    }
    for (; n < count; ++n) {
      const BFloat16* row = reinterpret_cast<const BFloat16*>(from + n * stride);
      for (int64_t g = 0; g < groups; ++g) to[g * kRowBatch + n] = to_float(row[g]);
    }
  }
};

// The queries of a part as integers, in pairs as codes are. A query has one scale, which is NaN if
// one of its numbers is infinite or NaN.
struct IntegerQueries {
  static int64_t floats(const AttentionTask& t) {
    return kMaxDecodeRows * (t.dim / 2 + most_groups(t) + 1);
  }

  IntegerQueries(const AttentionTask& t, const KeyValues& keys, float* memory)
      : dim(t.dim),
        group(keys.group),
        groups(dim / group),
        pairs(reinterpret_cast<IntegerPair*>(memory)),
        sums(memory + kMaxDecodeRows * dim / 2),
        scales(sums + kMaxDecodeRows * groups) {}

  template <int Bits>
  void round(int64_t n, const float* query) const {
    const RowSize size = size_of_row(query, dim);
    const IntegerScale scale(size.largest / kMaxInteger);
    scales[n] = size.is_finite ? scale.scale : std::nanf("");
    char* integers = reinterpret_cast<char*>(pairs + n * dim / 2);
    for (int64_t g = 0; g < groups; ++g) {
      Ints total{};
      for (int64_t d = g * group; d < (g + 1) * group; d += W) {
        const Words rounded = to_integers(load(query + d), scale.inverse);
        total += bit_cast<Ints>(rounded << 16) >> 16;
        const Shorts shorts = narrow(rounded);
        std::memcpy(integers + 2 * d, &shorts, sizeof shorts);
      }
      sums[n * groups + g] = sum(__builtin_convertvector(total, Floats));
    }
    for (int64_t d = 0; d < dim; d += 2 * kWordCodes<Bits>) pair_up<Bits>(integers + 2 * d);
  }

  const int64_t dim, group, groups;
  IntegerPair* const pairs;  // rows x dim / 2
  float* const sums;         // rows x groups: the sums of the integers of a group
  float* const scales;       // rows

 private:
  // Reorders the integers that belong to the codes of two words: pairs of one of each word.
  template <int Bits>
  static void pair_up(char* integers) {
    constexpr int codes_of_word = kWordCodes<Bits>;
    uint16_t from[2][codes_of_word], to[codes_of_word][2];
    std::memcpy(from, integers, sizeof from);
    for (int i = 0; i < codes_of_word; ++i) to[i][0] = from[0][i], to[i][1] = from[1][i];
    std::memcpy(integers, to, sizeof to);
  }
};

// The weights of a batch of values, times the scales of the values, as integers. The weights of a
// row have one scale for each group, which is NaN if one of these products is infinite or NaN.
struct IntegerWeights {
  static constexpr int64_t kPairs = kRowBatch / 2;
  // No sum of products with codes exceeds 31 bits.
  static_assert(kRowBatch * kMaxInteger * 255 < 0x1p31);

  static int64_t floats(const AttentionTask& t) {
    return kMaxDecodeRows * most_groups(t) * (kPairs + 2);
  }

  IntegerWeights(const AttentionTask& t, const KeyValues& values, float* memory)
      : groups(t.dim / values.group),
        pairs(reinterpret_cast<IntegerPair*>(memory)),
        scales(memory + kMaxDecodeRows * groups * kPairs),
        biases(scales + kMaxDecodeRows * groups) {}

  // Rounds `count` weights of row n. Weights up to a whole vector must be zero.
  void round(int64_t n, const float* weights, const BatchScales& values, int64_t count) const {
    for (int64_t g = 0; g < groups; ++g) {
      const float* of_group = values.scales + g * kRowBatch;
      const float* biases_of_group = values.biases + g * kRowBatch;
      Floats largest{}, total{}, bias{};
      for (int64_t j = 0; j < count; j += W) {
        const Floats weight = load(weights + j), product = weight * load(of_group + j);
        largest = max(absolute(product), largest);
        total += product;
        bias = multiply_add(weight, load(biases_of_group + j), bias);
      }
      const IntegerScale scale(largest_lane(largest) / kMaxInteger);
      scales[n * groups + g] = std::isfinite(sum(total)) ? scale.scale : std::nanf("");
      biases[n * groups + g] = sum(bias);
      char* integers = reinterpret_cast<char*>(pairs + (n * groups + g) * kPairs);
      for (int64_t j = 0; j < count; j += W) {
        const Floats product = load(weights + j) * load(of_group + j);
        const Shorts shorts = narrow(to_integers(product, scale.inverse));
        std::memcpy(integers + 2 * j, &shorts, sizeof shorts);
      }
    }
  }

  const int64_t groups;
  IntegerPair* const pairs;  // rows x groups x kPairs: of two consecutive values
  float* const scales;       // rows x groups
  float* const biases;       // rows x groups: sums of weights times biases
};

}  // namespace tinyllm::TINYLLM_ISA
