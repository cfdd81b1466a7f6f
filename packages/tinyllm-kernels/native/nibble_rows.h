// Rows of 4-bit codes, read as bytes: the lower halves of W bytes, then the upper ones.
//
// That is half the work of putting each code into a lane of its own, but it leaves the features of
// each 2 W in another order: even ones, then odd ones. Sums over features do not care, as long as
// the queries stand in the same order; sums of values are put back at the end.
#pragma once

#include "key_value_rows.h"

namespace tinyllm::TINYLLM_TIER {

struct NibbleRows : CodedRows<Mode::affine, 4> {
  static constexpr int kParts = 2;

  template <int Part>
  static Floats raw(const char* row, int64_t d) {
    Bytes bytes;
    std::memcpy(&bytes, row + d / 2, sizeof bytes);
    Words codes = widen(bytes);
    return to_floats(Part ? codes >> 4 : codes & 15);
  }
};

// Whether rows are read so where the order of features does not matter.
inline bool splits(const KeyValues& kv) { return kv.mode == Mode::affine && kv.bits == 4; }

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
