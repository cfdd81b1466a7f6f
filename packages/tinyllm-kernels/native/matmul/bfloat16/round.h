// Weights rounded to bfloat16. TINYLLM_BFLOAT16 is defined if the instruction set multiplies
// bfloat16.
//
// x is bfloat16 already. Rounding w adds a smaller error than the rounding of x did.
#pragma once

#include "isa/load_store.h"
#include "matmul/bfloat16/e4m3_pairs.h"
#include "matmul/formats.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#define TINYLLM_BFLOAT16
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>
#define TINYLLM_BFLOAT16
#endif

namespace tinyllm::TINYLLM_ISA {

#if defined(TINYLLM_BFLOAT16)

// Rounds to the nearest, ties to even. Subnormal numbers may become zero: the instructions that
// multiply bfloat16 treat them as zero anyway.
inline Shorts round_to_bfloat16(Floats v) {
#if defined(__AVX512BF16__)
  return bit_cast<Shorts>(_mm512_cvtneps_pbh(bit_cast<__m512>(v)));
#else
  float32x4_t quads[2];
  std::memcpy(quads, &v, sizeof v);
  return bit_cast<Shorts>(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(quads[0]), quads[1]));
#endif
}

// Writes row n of w to `to`. `row` is scratch memory of w.columns + W floats.
template <typename Format>
void round_row(const Weights& w, int64_t n, uint16_t* to, float* row) {
#if defined(TINYLLM_E4M3_PAIRS)
  if constexpr (std::is_same_v<Format, Mxfp8>) {
    for (int k = 0; k < w.columns; k += kMxfp8Group) {
      const Words pairs = mxfp8_group(w, n, k);
      std::memcpy(to + k, &pairs, sizeof pairs);
    }
    return;
  }
#endif
  dequantize_row<Format>(w, n, 0, w.columns, row);
  std::fill_n(row + w.columns, W, 0.0f);  // completes the last dot product
  for (int k = 0; k < w.columns; k += W) {
    const Shorts numbers = round_to_bfloat16(load(row + k));
    std::memcpy(to + k, &numbers, sizeof numbers);
  }
}

#endif

}  // namespace tinyllm::TINYLLM_ISA
