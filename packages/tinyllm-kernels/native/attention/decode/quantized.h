// Quantized keys and values of a decode step, as integers on x86-64.
//
// A row is scale * codes + bias in each group of features. So a score is, added up over the groups,
//
//     scale * (query . codes) + bias * (sum of the query)
//
// and the sum of the values of a batch is
//
//     sum of (weight * scale) * codes + sum of weight * bias
//
// where the query and weight * scale become integers times a scale. The integers of a row stand for
// 15 bits of its largest number, and their products with codes are exact.
#pragma once

#include "attention/decode/products.h"

#if defined(__AVX2__)

#include "attention/decode/operands.h"

namespace tinyllm::TINYLLM_ISA {

// True if keys or values are multiplied as integers: codes of 8 or 4 bits in whole vectors, with
// queries and scales in bfloat16. The norm of such a query loses less than by its rounding.
inline bool decodes_integers(const AttentionTask& t, const KeyValues& kv) {
  return t.type == Type::bfloat16 && kv.type == Type::bfloat16 && kv.mode == Mode::affine &&
         (kv.bits == 8 || kv.bits == 4) && t.dim * kv.bits % (32 * W) == 0 &&
         kv.group * kv.bits % (16 * W) == 0 && kv.group >= kLeastGroup && kv.group <= kMostGroup;
}

// Calls `work(std::integral_constant<int, Bits>)` with the bits of a code, 8 or 4.
template <typename Work>
void with_code_bits(const KeyValues& kv, Work work) {
  if (kv.bits == 8) return work(std::integral_constant<int, 8>());
  work(std::integral_constant<int, 4>());
}

// The scores of the keys of a part. The queries are rounded when it is made.
class IntegerKeys {
 public:
  // Floats of memory: whole vectors.
  static int64_t floats(const AttentionTask& t) {
    return t.dim / 4 * W + BatchScales::floats(t) + IntegerQueries::floats(t);
  }

  // `queries` are `padded_dim()` floats apart.
  IntegerKeys(const AttentionTask& t, const AttentionPart& part, const DecodeStream& stream,
              const float* queries, float* memory)
      : t_(t),
        part_(part),
        stream_(stream),
        columns_(reinterpret_cast<uint32_t*>(memory)),
        scales_(t, t.k, memory + t.dim / 4 * W),
        queries_(t, t.k, memory + t.dim / 4 * W + BatchScales::floats(t)) {
    with_code_bits(t.k, [&]<int Bits>(std::integral_constant<int, Bits>) {
      for (int64_t n = 0; n < part.tile.rows; ++n) {
        queries_.round<Bits>(n, queries + n * t.padded_dim());
      }
    });
  }

  // Writes the scores of keys `first` to `first + count` of the part, and anything up to a whole
  // vector: scores[n * kDecodeSplit + j] for row n and key j.
  void score(int64_t first, int64_t count, float* scores) const {
    scales_.read(t_, t_.k, part_.tile, part_.keys.first + first, count);
    with_code_bits(t_.k, [&]<int Bits>(std::integral_constant<int, Bits>) {
      for (int64_t j = 0; j < count; j += W) {
        transpose_keys<Bits>(first + j, std::min<int64_t>(W, count - j));
        for_row_tiles(part_.tile.rows, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
          score_vector<Bits, R>(row, j, scores + row * kDecodeSplit + first + j);
        });
      }
    });
  }

 private:
  // Sets column c of `columns_` to 32 bits of codes of W keys. Missing keys repeat the last one.
  template <int Bits>
  void transpose_keys(int64_t first, int64_t count) const {
    const char* const* keys = stream_.keys() + first;
    const char* last[W];
    if (count < W) {
      for (int n = 0; n < W; ++n) last[n] = keys[std::min<int64_t>(n, count - 1)];
      keys = last;
    }
    for (int64_t byte = 0; byte < t_.dim * Bits / 8; byte += 4 * W) {
      if (stream_.prefetches() && byte % DecodeStream::kLine == 0) {
        stream_.prefetch_lines(first, static_cast<int>(count), byte);
      }
      Words square[W];
      for (int n = 0; n < W; ++n) square[n] = load_words(keys[n] + byte);
      transpose(square);
      for (int n = 0; n < W; ++n) store_words(columns_ + (byte / 4 + n) * W, square[n]);
    }
  }

  // The scores of R rows from `row` on and the keys of `columns_`, from key j of the batch on.
  template <int Bits, int R>
  void score_vector(int64_t row, int64_t j, float* to) const {
    const IntegerQueries& q = queries_;
    const int64_t columns = q.group / (2 * kWordCodes<Bits>);
    Floats scores[R] = {};
    for (int64_t g = 0; g < q.groups; ++g) {
      Floats products[R];
      multiply_key_codes<Bits, R>(q.pairs + (row * q.dim + g * q.group) / 2, q.dim / 2,
                                  columns_ + g * columns * W, columns, products);
      const Floats scale = load(scales_.scales + g * kRowBatch + j);
      const Floats stored_bias = load(scales_.biases + g * kRowBatch + j);
      // An infinite scale or bias gives NaN: -infinity would be the score of a key without weight.
      const Floats bias = stored_bias + (stored_bias * 0 + scale * 0);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        scores[r] = multiply_add(products[r], scale, scores[r]);
        scores[r] = multiply_add(bias, splat(q.sums[(row + r) * q.groups + g]), scores[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) store(to + r * kDecodeSplit, scores[r] * q.scales[row + r]);
  }

  const AttentionTask& t_;
  const AttentionPart& part_;
  const DecodeStream& stream_;
  uint32_t* const columns_;  // dim * Bits / 32 x W
  const BatchScales scales_;
  const IntegerQueries queries_;
};

// The weighted sums of the values of a part.
class IntegerValues {
 public:
  static int64_t floats(const AttentionTask& t) {
    return BatchScales::floats(t) + IntegerWeights::floats(t);
  }

  IntegerValues(const AttentionTask& t, const AttentionPart& part, const DecodeStream& stream,
                float* memory)
      : t_(t),
        part_(part),
        stream_(stream),
        scales_(t, t.v, memory),
        weights_(t, t.v, memory + BatchScales::floats(t)) {}

  // Adds values `first` to `first + count` of the part to `sums`, whose rows are `padded_dim()`
  // floats apart. weights[n * kDecodeSplit + j] belongs to row n and value j. Weights after `count`
  // become zero, up to a whole vector.
  void add(int64_t first, int64_t count, float* weights, float* sums) const {
    scales_.read(t_, t_.v, part_.tile, part_.keys.first + first, count);
    for (int64_t n = 0; n < part_.tile.rows; ++n) {
      float* row = weights + n * kDecodeSplit + first;
      zero_tail(row, count);
      weights_.round(n, row, scales_, count);
    }
    with_code_bits(t_.v, [&]<int Bits>(std::integral_constant<int, Bits>) {
      // The sums of a row have 4 registers with 8 bits, and 8 with 4.
      constexpr int most_rows = kDecodeRows * Bits / 8;
      for (int64_t byte = 0; byte < t_.dim * Bits / 8; byte += 4 * W) {
        for_row_tiles<most_rows>(
            part_.tile.rows, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
              add_features<Bits, R>(row, first, count, byte, sums + row * t_.padded_dim());
            });
      }
    });
  }

 private:
  // Adds the features of 4 W bytes of codes to R rows from `row` on.
  template <int Bits, int R>
  void add_features(int64_t row, int64_t first, int64_t count, int64_t byte, float* to) const {
    constexpr int codes_of_word = kWordCodes<Bits>;
    const int64_t feature = byte * 8 / Bits;
    const int64_t groups[2] = {feature / t_.v.group,
                               (feature + codes_of_word * W) / t_.v.group};  // of both halves
    const IntegerPair* pairs[R][2];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      for (int half = 0; half < 2; ++half) {
        pairs[r][half] =
            weights_.pairs + ((row + r) * weights_.groups + groups[half]) * IntegerWeights::kPairs;
      }
    }
    ValueSums<Bits, R> sums;
    const char* const* values = stream_.values() + first;
    const int64_t index = stream_.first_value() + first, even = count / 2 * 2;
    // Two loops, so that the condition is not part of them.
    if (stream_.prefetches() && row == 0 && byte % DecodeStream::kLine == 0) {
      for (int64_t j = 0; j < even; j += 2) {
        stream_.prefetch_lines(index + j, 2, byte);
        sums.add(values[j] + byte, values[j + 1] + byte, pairs, j / 2);
      }
    } else {
      for (int64_t j = 0; j < even; j += 2) {
        sums.add(values[j] + byte, values[j + 1] + byte, pairs, j / 2);
      }
    }
    // The weight of a value after the last one is zero.
    if (even < count) sums.add(values[even] + byte, values[even] + byte, pairs, even / 2);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int64_t group = (row + r) * weights_.groups + groups[half];
        Floats features[codes_of_word];
        sums.read(r, half, weights_.scales[group], features);
        float* at = to + r * t_.padded_dim() + feature + half * codes_of_word * W;
#pragma GCC unroll 4
        for (int i = 0; i < codes_of_word; ++i) {
          store(at + i * W, load(at + i * W) + (features[i] + weights_.biases[group]));
        }
      }
    }
  }

  const AttentionTask& t_;
  const AttentionPart& part_;
  const DecodeStream& stream_;
  const BatchScales scales_;
  const IntegerWeights weights_;
};

}  // namespace tinyllm::TINYLLM_ISA

#else

namespace tinyllm::TINYLLM_ISA {

inline bool decodes_integers(const AttentionTask&, const KeyValues&) { return false; }

struct IntegerKeys {
  static int64_t floats(const AttentionTask&) { return 0; }
  IntegerKeys(const AttentionTask&, const AttentionPart&, const DecodeStream&, const float*,
              float*) {}
  void score(int64_t, int64_t, float*) const {}
};

struct IntegerValues {
  static int64_t floats(const AttentionTask&) { return 0; }
  IntegerValues(const AttentionTask&, const AttentionPart&, const DecodeStream&, float*) {}
  void add(int64_t, int64_t, float*, float*) const {}
};

}  // namespace tinyllm::TINYLLM_ISA

#endif
