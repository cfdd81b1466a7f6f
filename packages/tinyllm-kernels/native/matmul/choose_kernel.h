// The choice of the kernel of a product: the first one that fits, from the top of `choose_kernel`.
#pragma once

#include "isa/tile_registers.h"
#include "matmul/bfloat16/e4m3_pairs.h"
#include "matmul/bfloat16/round.h"
#include "matmul/integer/words.h"
#include "matmul/linear.h"

namespace tinyllm::TINYLLM_ISA {

// The kernels that this instruction set has. Those with floats are always there.

#if defined(TINYLLM_AMX)
inline constexpr bool kHasAmx = true;
#else
inline constexpr bool kHasAmx = false;
#endif

#if defined(TINYLLM_BFLOAT16)
inline constexpr bool kHasBFloat16Gemm = !kHasAmx;
#else
inline constexpr bool kHasBFloat16Gemm = false;
#endif

#if defined(__AVX512BF16__)
inline constexpr bool kHasBFloat16Gemv = !kHasAmx;
#else
inline constexpr bool kHasBFloat16Gemv = false;
#endif

#if defined(TINYLLM_E4M3_PAIRS)
inline constexpr bool kHasMxfp8Gemv = true;
#else
inline constexpr bool kHasMxfp8Gemv = false;
#endif

#if defined(TINYLLM_INTEGER_GEMM)
inline constexpr bool kHasIntegerGemm = true;
#else
inline constexpr bool kHasIntegerGemm = false;
#endif

#if defined(TINYLLM_INT8_GEMM)
inline constexpr bool kHasInt8Gemm = true;
#else
inline constexpr bool kHasInt8Gemm = false;
#endif

// Rows of x up to which GEMV takes less time than GEMM, which packs panels of w.
inline constexpr int64_t kMostGemvTokens = 16;

// True if packed x of this type is in pairs of bfloat16. Otherwise it is in floats.
inline bool packs_bfloat16(Type type) { return kHasBFloat16Gemm && type == Type::bfloat16; }

// Returns the kernel for `tokens` rows of x, which are of `type`. The number of rows never decides
// between kernels that round differently.
inline LinearKernel choose_kernel(const Weights& w, Type type, Phase phase, int64_t tokens) {
  const bool is_prompt = phase == Phase::prefill, is_bfloat16 = type == Type::bfloat16;
  if (kHasAmx && is_prompt && is_bfloat16) return LinearKernel::bfloat16_amx;
  if (uses_int8_activations(w)) {
    if (kHasAmx && tokens > 1) return LinearKernel::int8_amx;
    if (kHasInt8Gemm && tokens > kMostGemvTokens) return LinearKernel::int8_gemm;
    return LinearKernel::int8_gemv;
  }
  if (kHasBFloat16Gemm && is_prompt && is_bfloat16) {
    const bool can_read_codes = w.interleaved == W && supports_integers(w);
    return kHasBFloat16Gemv && can_read_codes && tokens <= kMostGemvTokens
               ? LinearKernel::bfloat16_gemv
               : LinearKernel::bfloat16_gemm;
  }
  if (supports_integers(w) && type != Type::float32) {
    const bool fills_tiles = w.group >= 32;  // a group of nvfp4 has 16 columns
    if (kHasAmx && !is_prompt && tokens > 1 && fills_tiles) return LinearKernel::integer_amx;
    if (kHasIntegerGemm && is_prompt && tokens > kMostGemvTokens) return LinearKernel::integer_gemm;
    return LinearKernel::integer_gemv;
  }
  if (is_prompt) return LinearKernel::float_gemm;
  const bool is_mxfp8 = w.mode == Mode::mxfp8 && is_bfloat16;
  return kHasMxfp8Gemv && is_mxfp8 ? LinearKernel::mxfp8_gemv : LinearKernel::float_gemv;
}

}  // namespace tinyllm::TINYLLM_ISA
