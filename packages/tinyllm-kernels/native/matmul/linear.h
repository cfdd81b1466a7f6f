// y = x w^T + bias + residual: the matrix product of a linear layer.
//
// Decode and prefill have different kernels:
//
// - Decode is limited by memory bandwidth, because each weight is used a few times only. Every code
//   is multiplied as it is unpacked (GEMV).
// - Prefill packs a panel, some rows of w, once and multiplies it by many rows of x (GEMM). Packing
//   dequantizes the rows, or unpacks their codes to integers.
//
// The arithmetic depends on the types and on the instruction set:
//
// - bfloat16, for prefill, if x is bfloat16 and the instruction set multiplies bfloat16. With
//   AVX-512 also for decode with mxfp8, whose numbers bfloat16 represents.
// - Integers, for affine weights of 4 or 8 bits, mxfp4 and nvfp4, if x has 16 bits and the
//   instruction set has integer dot products. x is quantized to 15 bits; to 8 bits if the weights
//   ask for it, with x of any type. NEON has dot products of bytes only, so prefill uses the GEMV
//   kernels.
// - float32, otherwise.
//
// These kinds of arithmetic round differently. The phase, the types and the weights determine
// the kind, and the number of rows of x does not. The bits of a result do not depend on the other
// rows of x, nor on how a task is cut into parts. So a request gets the same bits in any batch
// composition.
#pragma once

#include <cstdint>

#include "ceil_div.h"
#include "types.h"

namespace tinyllm {

// Rows of x that GEMM kernels pack together: a tile of tokens.
inline constexpr int kTokenTile = 32;

// The kernel of a product, which `linear_kernel` chooses, with the layout of x that it reads. The
// files are in folders of matmul/ by the kind of arithmetic: `integer_amx` is integer/amx_gemm.h.
// `bfloat16_gemv` and `bfloat16_gemm` are bfloat16/avx512_*.h and neon_gemm.h, `int8_gemm` is in
// integer/gemm.h, `int8_amx` in integer/amx_gemm.h.
enum class LinearKernel : uint8_t {
  float_gemv,     // x as floats, and its sums over groups
  float_gemm,     // packed floats
  mxfp8_gemv,     // x as it lies in memory
  bfloat16_gemv,  // packed pairs of bfloat16
  bfloat16_gemm,  // the same
  bfloat16_amx,   // x as it lies in memory
  integer_gemv,   // x in 15 bits: `QuantizedX`
  integer_gemm,
  integer_amx,
  int8_gemv,  // x in 8 bits: `QuantizedX`
  int8_gemm,
  int8_amx,
};

// True if the kernel reads x in 15 or in 8 bits.
[[gnu::always_inline]] inline bool quantizes_x(LinearKernel kernel) {
  return kernel >= LinearKernel::integer_gemv;
}

// True if the kernel reads x in 8 bits.
[[gnu::always_inline]] inline bool rounds_x_to_int8(LinearKernel kernel) {
  return kernel >= LinearKernel::int8_gemv;
}

// Parts that each thread computes, if its task is large enough. Threads that are slower, or are
// preempted, leave parts to the others.
inline constexpr int64_t kPartsPerThread = 16;

// A product. It points to memory of its caller. The caller sets `part_rows` and `part_tokens` with
// `linear_plan`, which takes a number of parts to aim at, and then computes all parts, in any order
// and on any threads.
struct LinearTask {
  LinearKernel kernel{};
  // x in the layout that the kernel reads. `Operand` (layers/) makes it, and sets `kernel`.
  const float* x = nullptr;             // M K
  // M K/group: for float_gemv sums of x over each quantization group of w; see also `QuantizedX`
  const float* x_group_sums = nullptr;
  const int8_t* x_integers = nullptr;   // see `QuantizedX`
  const float* x_scales = nullptr;      // see `QuantizedX`
  const uint32_t* x_packed = nullptr;   // tiles of tokens: pairs of bfloat16, or floats
  const BFloat16* x_unpacked = nullptr;  // M K, K a multiple of 32
  int64_t x_stride = 0;                  // numbers from a row of x_unpacked to the next
  int64_t tokens = 0;                    // M, the rows of x
  Phase phase{};
  const Weights* w = nullptr;      // N K
  // N K, in the format of w: y = silu(x w^T) * (x up^T); only with bfloat16_amx
  const Weights* up = nullptr;
  const void* bias = nullptr;      // N of `type`, or null
  const void* residual = nullptr;  // M N of `type`, or null
  void* y = nullptr;               // M N of `type`
  int64_t y_stride = 0;            // numbers from a row of y to the next
  Type type{};                     // float32, float16 or bfloat16
  int64_t part_rows = 0;           // rows of w in a part
  int64_t part_tokens = 0;         // rows of x in a part
};

// x quantized to 15 bits, or to int8, with a scale for each group of each row, for integer kernels.
// The caller allocates the arrays. For `integer_gemv` they are row by row. All other kernels pack
// up to 16 rows together (see quantize_x.h and int8_gemv.h in matmul/integer/).
struct QuantizedX {
  int8_t* integers;   // M K 2 in 15 bits, M K in int8
  float* scales;      // M K/group
  float* group_sums;  // M K/group: sums of the rounded numbers
  int64_t tokens;     // M
};

// Some groups of some rows (tokens) of x. The first number is `x[0]`, the first one of the next row
// `x[stride]`.
struct XRange {
  const float* x;
  int64_t stride;
  int64_t first_token, last_token;
  int64_t first_group, last_group;  // of quantization
};

// Pairs of numbers in a row of x that is packed for bfloat16 kernels. Its columns are rounded up to
// whole steps of 32.
[[gnu::always_inline]] inline int64_t packed_pairs(int columns) {
  return ceil_div(columns, 32) * 16;
}

// The results of one part: tokens (rows of x) times rows of w. The last ones are excluded.
struct LinearRange {
  int64_t first_token, last_token, first_row, last_row;
};

#ifdef TINYLLM_ISA
namespace TINYLLM_ISA {
// The tokens of a part, in whole tiles, of a task with `part_rows`: all tokens, unless w has too few
// rows for `parts` parts.
inline int64_t divided_tokens(const LinearTask& t, int64_t parts) {
  const int64_t token_ranges = ceil_div(parts, ceil_div(t.w->rows, t.part_rows));
  const int64_t tiles = ceil_div(t.tokens, kTokenTile);
  return (tiles > token_ranges ? ceil_div(tiles, token_ranges) : 1) * kTokenTile;
}

// Writes the sum of each group of `group` numbers of x. `group` is a multiple of W.
void group_sums(const float* x, int64_t groups, int group, float* sums);
}  // namespace TINYLLM_ISA
#endif

}  // namespace tinyllm
