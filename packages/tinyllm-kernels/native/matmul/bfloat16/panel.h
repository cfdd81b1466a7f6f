// Rows of w in bfloat16, for kernels that multiply pairs or fours of it: see matmul/bfloat16/gemm.h.
#pragma once

#include <algorithm>
#include <bit>

#include "isa/load_store.h"
#include "matmul/formats.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#define TINYLLM_BFLOAT16
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#define TINYLLM_BFLOAT16
#endif

namespace tinyllm::TINYLLM_TIER {

inline constexpr int kPairPanel = 48;  // rows of w that are unpacked together, at most
inline constexpr int kApart = 32;      // numbers between them: rows of 2 KB would share a cache set

// Numbers of a row that are multiplied and added up by one instruction.
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline constexpr int kRun = 4;
#else
inline constexpr int kRun = 2;
#endif

// Rows that may be unpacked together where only one tile meets them, to the first-level cache.
inline constexpr int kNearPanel = kRun == 4 ? 16 : 12;

// Pairs in a row of so many numbers, up to the end of a run.
inline int64_t pairs_of(int columns) { return (columns + kRun - 1) / kRun * (kRun / 2); }

// Numbers from a row of an unpacked panel to the next, and floats that unpacking one takes.
inline int64_t panel_stride(int columns) { return 2 * pairs_of(columns) + kApart; }
inline int64_t panel_room(int columns) {
  return kPairPanel * panel_stride(columns) / 2 + columns + W;
}

#if defined(TINYLLM_BFLOAT16)

// Rows of bfloat16, `stride` numbers from one to the next.
struct Pairs {
  const uint16_t* rows;
  int64_t stride;
};

// To bfloat16. What is subnormal may become zero: to a product of pairs it is nothing else.
inline Shorts rounded(Floats v) {
#if defined(__AVX512BF16__)
  return std::bit_cast<Shorts>(_mm512_cvtneps_pbh(std::bit_cast<__m512>(v)));
#else
  float32x4_t halves[2];
  std::memcpy(halves, &v, sizeof v);
  return std::bit_cast<Shorts>(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(halves[0]), halves[1]));
#endif
}

// Row n of w; `row` has room for it as floats.
template <typename Format>
void round_row(const Weights& w, int64_t n, uint16_t* to, float* row) {
  decode_row<Format>(w, n, 0, w.columns, row);
  std::fill_n(row + w.columns, W, 0.0f);  // what the last run lacks
  for (int k = 0; k < w.columns; k += W) {
    const Shorts numbers = rounded(load(row + k));
    std::memcpy(to + k, &numbers, sizeof numbers);
  }
}

#if defined(__AVX512BF16__)

// Of codes of 4 bits a group has 16 numbers: each is rounded once, and looked up after that. Here
// they are twice, so that of an index the low 4 bits count alone.
inline __m512i numbers_of(Affine affine) {
  constexpr Floats every = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return _mm512_broadcast_i64x4(std::bit_cast<__m256i>(rounded(every * affine.scale + affine.bias)));
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

#endif

// So many rows of w from `first` on: where they lie, or unpacked to `room`.
template <typename Format>
Pairs unpack_pairs(const Weights& w, int64_t first, int64_t rows, float* room) {
  if constexpr (std::is_same_v<Format, Dense<BFloat16>>) {
    if (w.columns % kRun == 0) {
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
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<Format, Coded<Mode::affine, 4>>) {
      look_up_row(w, first + n, panel + n * stride);
      continue;
    }
#endif
    round_row<Format>(w, first + n, panel + n * stride, room + kPairPanel * stride / 2);
  }
  return {panel, stride};
}

#endif

}  // namespace tinyllm::TINYLLM_TIER
