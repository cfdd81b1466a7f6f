// The two half formats as they lie in memory, and the way to float and back.
#pragma once

#include <bit>
#include <cstdint>

namespace tinyllm {

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
