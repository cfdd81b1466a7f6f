// The scan of the delta rule: some rows of a state pass over the tokens of a segment.
//
// The rows of a state are independent of each other, and a row is a sequence of dependent steps.
// Four rows at once hide most of the latency of a step, and share the loads of keys and queries.
#pragma once

#include "isa/lane_sums.h"
#include "isa/vectors.h"

namespace tinyllm::TINYLLM_ISA {

inline constexpr int kScanRows = 4;

// Tokens of one value head, in float32. Keys and queries are normalized and padded with zeros to
// `key_width`, a multiple of W. Values and outputs are rows of `value_width`, a multiple of kScanRows.
struct HeadTokens {
  int64_t count;
  int64_t key_width, value_width;
  const float *keys, *queries;  // count key_width
  const float* values;          // count value_width
  const float* decays;          // count: factors of the state
  const float* rates;           // count: factors of the change, sigmoid(b)
  float* outputs;               // count value_width
};

// kScanRows rows of `Vectors` vectors each, in registers as far as there are registers.
template <int Vectors>
struct RegisterRows {
  static constexpr int kVectors = Vectors;

  int vectors() const { return Vectors; }
  Floats& operator()(int row, int64_t i) { return rows[row][i]; }

  Floats rows[kScanRows][Vectors];
};

// kScanRows rows of any size in memory.
struct MemoryRows {
  static constexpr int kVectors = 0;

  int vectors() const { return count; }
  Floats& operator()(int row, int64_t i) { return data[row * count + i]; }

  Floats* data;
  int count;
};

namespace scan_rows {

using FourFloats [[gnu::vector_size(16)]] = float;

inline FourFloats sums_of(const Floats (&sums)[2][kScanRows]) {
  float lanes[kScanRows];
  store_sums(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1], sums[0][2] + sums[1][2],
             sums[0][3] + sums[1][3], lanes);
  FourFloats result;
  std::memcpy(&result, lanes, sizeof result);
  return result;
}

}  // namespace scan_rows

// Passes over all tokens with the rows from `row` on.
template <typename Rows>
[[gnu::always_inline]] inline void scan(const HeadTokens& t, int64_t row, Rows& state) {
  using namespace scan_rows;
  const int vectors = Rows::kVectors ? Rows::kVectors : state.vectors();
  for (int64_t n = 0; n < t.count; ++n) {
    const float *key = t.keys + n * t.key_width, *query = t.queries + n * t.key_width;
    const Floats decay = splat(t.decays[n]);
    // Two sums for each row, of even and of odd vectors: one would be a chain of twice the length.
    Floats found[2][kScanRows] = {};
#pragma GCC unroll 16
    for (int i = 0; i < vectors; ++i) {
      const Floats k = load(key + i * W);
#pragma GCC unroll 4
      for (int r = 0; r < kScanRows; ++r) found[i % 2][r] = state(r, i) * k + found[i % 2][r];
    }
    FourFloats value;
    std::memcpy(&value, t.values + n * t.value_width + row, sizeof value);
    const FourFloats change = (value - sums_of(found) * t.decays[n]) * t.rates[n];
    Floats out[2][kScanRows] = {};
#pragma GCC unroll 16
    for (int i = 0; i < vectors; ++i) {
      const Floats k = load(key + i * W), q = load(query + i * W);
#pragma GCC unroll 4
      for (int r = 0; r < kScanRows; ++r) {
        const Floats s = k * change[r] + state(r, i) * decay;
        state(r, i) = s;
        out[i % 2][r] = s * q + out[i % 2][r];
      }
    }
    const FourFloats outputs = sums_of(out);
    std::memcpy(t.outputs + n * t.value_width + row, &outputs, sizeof outputs);
  }
}

}  // namespace tinyllm::TINYLLM_ISA
