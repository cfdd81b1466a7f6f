// A weight matrix as it lies in memory: N rows of K numbers, dense or packed as MLX packs them.
#pragma once

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
  int interleaved = 0;  // rows that lie side by side (see interleaved_rows.h); 0 is none
};

}  // namespace tinyllm
