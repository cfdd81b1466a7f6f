// Rows of 4-bit codes or of bfloat16, read two to a lane: first the lower halves, then the upper.
//
// That is half the work of putting each number into a lane of its own, but it leaves the features
// of each 2 W in another order: even ones, then odd ones. Sums over features do not care, as long
// as the queries stand in the same order; sums of values are put back at the end.
#pragma once

#include "key_value_rows.h"

namespace tinyllm::TINYLLM_TIER {

struct SplitNibbles : CodedRows<Mode::affine, 4> {
  static Floats raw(const char* row, int64_t d) {
    Bytes bytes;
    std::memcpy(&bytes, row + d / (2 * W) * W, sizeof bytes);
    Words codes = widen(bytes);
    return to_floats(d / W % 2 ? codes >> 4 : codes & 15);
  }
};

struct SplitHalves : DenseRows<BFloat16> {
  static Floats raw(const char* row, int64_t d) {
    Words pairs;
    std::memcpy(&pairs, row + d / (2 * W) * sizeof pairs, sizeof pairs);
    return std::bit_cast<Floats>(d / W % 2 ? pairs & 0xffff0000u : pairs << 16);
  }
};

// Whether rows are read so where the order of features does not matter.
inline bool splits(const AttentionTask& t, const KeyValues& kv) {
  if (t.dim % (2 * W)) return false;
  const bool nibbles = kv.mode == Mode::affine && kv.bits == 4;
  return nibbles || (kv.mode == Mode::dense && kv.type == Type::bfloat16);
}

// `with_fast_rows`, where the order of features does not matter.
template <typename Work>
void with_split_rows(const AttentionTask& t, const KeyValues& kv, const Places& at, int64_t count,
                     float* scratch, Work work) {
  if (!splits(t, kv)) return with_fast_rows(t, kv, at, count, W, scratch, work);
  if (kv.mode == Mode::dense) return work(SplitHalves(), at);
  work(SplitNibbles(), at);
}

namespace splitting {

template <int... Lanes>
inline void split(float* row, std::integer_sequence<int, Lanes...>) {
  Floats a = load(row), b = load(row + W);
  store(row, __builtin_shufflevector(a, b, 2 * Lanes...));
  store(row + W, __builtin_shufflevector(a, b, 2 * Lanes + 1 ...));
}

template <int... Lanes>
inline void join(float* row, std::integer_sequence<int, Lanes...>) {
  Floats even = load(row), odd = load(row + W);
  store(row, __builtin_shufflevector(even, odd, (Lanes % 2 * W + Lanes / 2)...));
  store(row + W, __builtin_shufflevector(even, odd, (Lanes % 2 * W + Lanes / 2 + W / 2)...));
}

}  // namespace splitting

// The features of rows that stand one after the other, into that order.
inline void split(float* rows, int64_t count) {
  for (int64_t d = 0; d < count; d += 2 * W) {
    splitting::split(rows + d, std::make_integer_sequence<int, W>{});
  }
}

// And back.
inline void join(float* rows, int64_t count) {
  for (int64_t d = 0; d < count; d += 2 * W) {
    splitting::join(rows + d, std::make_integer_sequence<int, W>{});
  }
}

}  // namespace tinyllm::TINYLLM_TIER
