// A weight matrix as it lies in memory: N rows of K numbers, dense or packed as MLX packs them.
#pragma once

#include <bit>
#include <cstdint>

namespace tinyllm {

enum class Type : uint8_t { float32, float16, bfloat16, uint8 };

inline int64_t size_of(Type type) { return type == Type::float32 ? 4 : type == Type::uint8 ? 1 : 2; }

enum class Mode : uint8_t { dense, affine, mxfp4, mxfp8, nvfp4 };

struct Weights {
  const void* data;    // numbers, or codes as one little-endian stream of bits a row
  const void* scales;  // N K/group, of `scale_type`; bytes in the float modes
  const void* biases;  // as scales, in affine mode alone
  int rows;            // N
  int columns;         // K
  int bits;            // of a code
  int group;           // numbers that share a scale
  Mode mode;
  Type type;  // of the numbers of a dense matrix, or of the scales
  int interleaved = 0;  // rows that lie side by side (see matmul/interleave.h); 0 is none
};

// --- phase.h
// Prefill or decode: the phase of a forward pass.

// The two phases are computed by different kernels, which round differently. Within a phase the
// bits of a row do not depend on the number of rows.
enum class Phase : uint8_t {
  prefill,  // rows are consecutive tokens of one sequence
  decode,   // each row is the newest token of a sequence
};

// --- half.h
// The two half formats as they lie in memory, and the way to float and back.

struct BFloat16 {
  uint16_t bits;
};

#if defined(__aarch64__)
using Float16 = __fp16;  // which GCC 12 has there, and _Float16 not yet
#else
using Float16 = _Float16;
#endif

inline float to_float(float x) { return x; }
inline float to_float(Float16 x) { return static_cast<float>(x); }
inline float to_float(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

template <typename T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline Float16 from_float<Float16>(float x) {
  return static_cast<Float16>(x);
}

// To the nearest, ties to even; a NaN stays one, whatever bits of it are cut off.
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

}  // namespace tinyllm
