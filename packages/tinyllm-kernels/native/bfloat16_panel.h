// Rows of w in pairs of bfloat16, for kernels that multiply those: see bfloat16_tiles.h.
#pragma once

#include <algorithm>

#include "numbers.h"
#include "weight_formats.h"

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kPairPanel = 48;  // rows of w that are unpacked together, at most
inline constexpr int kApart = 32;      // numbers between them: rows of 2 KB would share a cache set

// Pairs in a row of so many numbers.
inline int64_t pairs_of(int columns) { return (columns + 1) / 2; }

// Numbers from a row of an unpacked panel to the next, and floats that unpacking one takes.
inline int64_t panel_stride(int columns) { return 2 * pairs_of(columns) + kApart; }
inline int64_t panel_room(int columns) {
  return kPairPanel * panel_stride(columns) / 2 + columns + W;
}

#if defined(__AVX512BF16__)

// Rows of bfloat16, `stride` numbers from one to the next.
struct Pairs {
  const uint16_t* rows;
  int64_t stride;
};

// To bfloat16. What is subnormal may become zero: to a product of pairs it is nothing else.
inline __m256i rounded(Floats v) {
  return (__m256i)_mm512_cvtneps_pbh(std::bit_cast<__m512>(v));
}

// Row n of w; `row` has room for it as floats.
template <typename Format>
void round_row(const Weights& w, int64_t n, uint16_t* to, float* row) {
  decode_row<Format>(w, n, 0, w.columns, row);
  std::fill_n(row + w.columns, W, 0.0f);  // the other half of the last pair, where columns are odd
  for (int k = 0; k < w.columns; k += W) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), rounded(load(row + k)));
  }
}

// Of codes of 4 bits a group has 16 numbers: each is rounded once, and looked up after that. Here
// they are twice, so that of an index the low 4 bits count alone.
inline __m512i numbers_of(Affine affine) {
  constexpr Floats every = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return _mm512_broadcast_i64x4(rounded(every * affine.scale + affine.bias));
}

// The numbers of 32 codes: each byte of these makes two indices.
inline __m512i look_up(const uint8_t* codes, __m512i numbers) {
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m512i bytes = _mm512_cvtepu8_epi32(packed);
  const __m512i indices = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
  return _mm512_permutexvar_epi16(indices, numbers);
}

inline void look_up_row(const Weights& w, int64_t n, uint16_t* to) {
  using Packed = Coded<Mode::affine, 4>;
  const uint8_t* row = Packed::row(w, n);
  for (int k = 0; k < w.columns; k += w.group) {
    const __m512i numbers = numbers_of(Packed::affine(w, (n * w.columns + k) / w.group));
    for (int i = k; i < k + w.group; i += 32) {
      _mm512_storeu_si512(to + i, look_up(row + i / 2, numbers));
    }
  }
}

// So many rows of w from `first` on: where they lie, or unpacked to `room`.
template <typename Format>
Pairs unpack_pairs(const Weights& w, int64_t first, int64_t rows, float* room) {
  if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
    if (w.columns % 2 == 0) {
      return {static_cast<const uint16_t*>(w.data) + first * w.columns, w.columns};
    }
  }
  const int64_t stride = panel_stride(w.columns);
  uint16_t* panel = reinterpret_cast<uint16_t*>(room);
  for (int64_t n = 0; n < rows; ++n) {
    // Memory would rest while the panel is multiplied: the next one is asked for now.
    const auto* next = reinterpret_cast<const char*>(Format::row(w, first + rows + n));
    for (int64_t i = 0; i < int64_t{w.columns} * w.bits / 8; i += 64) {
      __builtin_prefetch(next + i, 0, 2);  // to the second-level cache
    }
    if constexpr (std::is_same_v<Format, Coded<Mode::affine, 4>>) {
      look_up_row(w, first + n, panel + n * stride);
    } else {
      round_row<Format>(w, first + n, panel + n * stride, room + kPairPanel * stride / 2);
    }
  }
  return {panel, stride};
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
