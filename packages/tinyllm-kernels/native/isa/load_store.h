// Reading and writing numbers of any of the three types, one or W at a time.
#pragma once

#include <bit>
#include <cstring>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "types.h"
#include "isa/vectors.h"

namespace tinyllm::TINYLLM_TIER {

// GCC 12 converts vectors of Float16 lane by lane, even where one instruction does it.
using Halves [[gnu::vector_size(2 * W)]] = Float16;

inline Floats to_floats(Halves halves) {
#if defined(__AVX512F__)
  return std::bit_cast<Floats>(_mm512_cvtph_ps(std::bit_cast<__m256i>(halves)));
#elif defined(__F16C__)
  return std::bit_cast<Floats>(_mm256_cvtph_ps(std::bit_cast<__m128i>(halves)));
#else
  return __builtin_convertvector(halves, Floats);
#endif
}

inline Halves to_halves(Floats v) {
#if defined(__AVX512F__)
  return std::bit_cast<Halves>(
      _mm512_cvtps_ph(std::bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  return std::bit_cast<Halves>(
      _mm256_cvtps_ph(std::bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  return __builtin_convertvector(v, Halves);
#endif
}

template <typename T>
Floats load_as_floats(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return load(from);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    Shorts bits;
    std::memcpy(&bits, from, sizeof bits);
    return std::bit_cast<Floats>(widen(bits) << 16);
  } else {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return to_floats(halves);
  }
}

// Each number rounded to bfloat16, in the lower half of its lane.
inline Words bfloat16_bits(Floats v) {
  Words bits = std::bit_cast<Words>(v);
  Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  Words kept = bits >> 16 | 0x40;  // of a NaN
  return v == v ? rounded : kept;
}

template <typename T>
void store_floats(T* to, Floats v) {
  if constexpr (std::is_same_v<T, float>) {
    store(to, v);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    Shorts shorts = __builtin_convertvector(bfloat16_bits(v), Shorts);
    std::memcpy(to, &shorts, sizeof shorts);
  } else {
    Halves halves = to_halves(v);
    std::memcpy(to, &halves, sizeof halves);
  }
}

// Calls `work` with a null pointer of the C++ type that `type` stands for.
template <typename Work>
auto with_type(Type type, Work work) {
  switch (type) {
    case Type::float16: return work(static_cast<Float16*>(nullptr));
    case Type::bfloat16: return work(static_cast<BFloat16*>(nullptr));
    default: return work(static_cast<float*>(nullptr));
  }
}

}  // namespace tinyllm::TINYLLM_TIER
