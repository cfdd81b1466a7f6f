// The types that all folders share: number formats, weight matrices, and the phase of a pass.
//
// Files that include this header are compiled for several instruction sets and linked into one
// library. The linker keeps one copy of an inline function, which may use instructions that the
// processor lacks. So a function in namespace tinyllm is `always_inline` and leaves no copy.
#pragma once

#include <bit>
#include <cstdint>

namespace tinyllm {

enum class Type : uint8_t { float32, float16, bfloat16, uint8 };

// Bytes of one number.
[[gnu::always_inline]] inline int64_t size_of(Type type) {
  return type == Type::float32 ? 4 : type == Type::uint8 ? 1 : 2;
}

// Prefill or decode: the phase of a forward pass. Each phase has kernels of its own, which round
// differently. Within a phase the bits of a row do not depend on the number of rows.
enum class Phase : uint8_t {
  prefill,  // rows are consecutive tokens of a prompt
  decode,   // each row is computed as in a pass of that token alone
};

// Quantization formats, as in MLX: codes of a few bits with a scale for each group of columns.
enum class Mode : uint8_t { dense, affine, mxfp4, mxfp8, nvfp4 };

// A weight matrix of N rows and K columns, dense or packed as MLX packs it. It owns no memory.
struct Weights {
  const void* data;     // N K numbers, or N rows of codes, each row a little-endian bit stream
  const void* scales;   // N K/group, of `type`; bytes in the modes mxfp4, mxfp8 and nvfp4
  const void* biases;   // N K/group, of `type`; in affine mode only
  int rows;             // N
  int columns;          // K
  int bits;             // bits of a code
  int group;            // columns that share a scale: a power of two
  Mode mode;
  Type type;            // of the numbers of a dense matrix, or of the scales
  int interleaved = 0;  // rows that are interleaved (see matmul/interleave.h), or 0
  // True if x may be quantized to int8 (see matmul/integer/int8_gemv.h).
  bool int8_activations = false;
};

// Bytes of the numbers or codes of one row.
[[gnu::always_inline]] inline int64_t row_bytes(const Weights& w) {
  return w.mode == Mode::dense ? w.columns * size_of(w.type) : int64_t{w.columns} * w.bits / 8;
}

struct BFloat16 {
  uint16_t bits;
};

#if defined(__aarch64__)
using Float16 = __fp16;  // GCC 12 has no _Float16 for this architecture
#else
using Float16 = _Float16;
#endif

[[gnu::always_inline]] inline float to_float(float x) { return x; }
[[gnu::always_inline]] inline float to_float(Float16 x) { return static_cast<float>(x); }
[[gnu::always_inline]] inline float to_float(BFloat16 x) {
  return std::bit_cast<float>(uint32_t{x.bits} << 16);
}

// Rounds to the nearest number of type T, ties to even.
template <typename T>
T from_float(float x);

template <>
[[gnu::always_inline]] inline float from_float<float>(float x) {
  return x;
}

template <>
[[gnu::always_inline]] inline Float16 from_float<Float16>(float x) {
  return static_cast<Float16>(x);
}

// NaN stays NaN: without bit 0x40 the upper 16 bits of some NaNs would be infinity.
template <>
[[gnu::always_inline]] inline BFloat16 from_float<BFloat16>(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace tinyllm
