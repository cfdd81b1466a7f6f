// Loads and stores of W numbers of type float, Float16 or BFloat16. Addresses need no alignment.
#pragma once

#include <cstring>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "isa/vectors.h"
#include "types.h"

namespace tinyllm::TINYLLM_ISA {

// GCC 12 converts a vector of Float16 lane by lane, so the instructions are named where they exist.
using Float16s [[gnu::vector_size(2 * W)]] = Float16;

inline Floats to_floats(Float16s v) {
#if defined(__AVX512F__)
  return bit_cast<Floats>(_mm512_cvtph_ps(bit_cast<__m256i>(v)));
#elif defined(__F16C__)
  return bit_cast<Floats>(_mm256_cvtph_ps(bit_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, Floats);
#endif
}

inline Float16s to_float16s(Floats v) {
#if defined(__AVX512F__)
  return bit_cast<Float16s>(_mm512_cvtps_ph(bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  return bit_cast<Float16s>(_mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  return __builtin_convertvector(v, Float16s);
#endif
}

// Loads W numbers as floats.
template <typename T>
Floats load_as_floats(const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return load(from);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    Shorts bits;
    std::memcpy(&bits, from, sizeof bits);
    return bit_cast<Floats>(widen(bits) << 16);
  } else {
    Float16s v;
    std::memcpy(&v, from, sizeof v);
    return to_floats(v);
  }
}

// Rounds to bfloat16, ties to even. The 16 bits are in the lower half of each lane.
inline Words bfloat16_bits(Floats v) {
  Words bits = bit_cast<Words>(v);
  Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  Words quiet_nan = bits >> 16 | 0x40;
  return v == v ? rounded : quiet_nan;
}

// The same as W numbers of 16 bits. The instruction reads subnormal numbers as zero, so they take
// the other way.
inline Shorts to_bfloat16s(Floats v) {
#if defined(__AVX512BF16__)
  constexpr int subnormal = 0x20;
  if (!_mm512_fpclass_ps_mask(bit_cast<__m512>(v), subnormal)) [[likely]] {
    return bit_cast<Shorts>(_mm512_cvtneps_pbh(bit_cast<__m512>(v)));
  }
#endif
  return narrow(bfloat16_bits(v));
}

#if defined(__AVX512BF16__)
// Rounds 2 W floats to W pairs of consecutive bfloat16 numbers. Subnormal numbers become zero.
inline Words to_bfloat16_pairs(Floats first, Floats second) {
  return bit_cast<Words>(_mm512_cvtne2ps_pbh(bit_cast<__m512>(second), bit_cast<__m512>(first)));
}
#endif

// Rounds W floats to type T, as floats. The lower 16 bits of a NaN are zero if T is BFloat16, as
// they are in results of numbers of 16 bits.
template <typename T>
Floats rounded_to(Floats v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    const Words bits = bit_cast<Words>(v);
    return bit_cast<Floats>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return to_floats(to_float16s(v));
  } else {
    return v;
  }
}

// Rounds W floats to type T and stores them.
template <typename T>
void store_floats(T* to, Floats v) {
  if constexpr (std::is_same_v<T, float>) {
    store(to, v);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const Shorts shorts = to_bfloat16s(v);
    std::memcpy(to, &shorts, sizeof shorts);
  } else {
    Float16s rounded = to_float16s(v);
    std::memcpy(to, &rounded, sizeof rounded);
  }
}

// Calls `work` with a null pointer to the C++ type of `type`: float, Float16 or BFloat16.
template <typename Work>
auto with_type(Type type, Work work) {
  switch (type) {
    case Type::float16: return work(static_cast<Float16*>(nullptr));
    case Type::bfloat16: return work(static_cast<BFloat16*>(nullptr));
    default: return work(static_cast<float*>(nullptr));
  }
}

}  // namespace tinyllm::TINYLLM_ISA
