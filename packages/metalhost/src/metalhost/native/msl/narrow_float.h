// A float of 16 bits whose arithmetic is that of float, rounded after every operation.
//
// Always bfloat; half too where the compiler has none of its own. Rounding a float sum, difference,
// product or quotient is exact rounding, since a float has more than twice the digits.
#pragma once
#include <stdint.h>

#include "metal_type_traits"

namespace metal {

template <class Format>
struct narrow_float;
template <class T>
constexpr bool is_narrow = false;
template <class Format>
constexpr bool is_narrow<narrow_float<Format>> = true;

struct bfloat_format {
  // Metal converts integers to bfloat by itself, and asks for a cast from float.
  template <class A>
  static constexpr bool converts_from = std::is_integral_v<A>;

  static constexpr float decode(uint16_t bits) {
    return __builtin_bit_cast(float, uint32_t(bits) << 16);
  }
  static constexpr uint16_t encode(float value) {
    uint32_t bits = __builtin_bit_cast(uint32_t, value);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);  // a quiet NaN
    uint32_t to_even = 0x7fff + (bits >> 16 & 1);
    return uint16_t((bits + to_even) >> 16);
  }
};

struct half_format {
  template <class A>
  static constexpr bool converts_from = !is_narrow<A>;

  static constexpr float decode(uint16_t bits) {
    uint32_t sign = uint32_t(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    float value = magnitude >= 0x7c00
                      ? __builtin_bit_cast(float, 0x7f800000 | (magnitude & 0x3ff) << 13)
                      // The exponent's bias is 15 here and 127 there; subnormals come out right, too.
                      : __builtin_bit_cast(float, magnitude << 13) * 0x1p112f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | sign);
  }
  static constexpr uint16_t encode(float value) {
    uint32_t bits = __builtin_bit_cast(uint32_t, value);
    uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return uint16_t(sign | 0x7e00);
    float size = __builtin_bit_cast(float, bits);
    if (size >= 65520.0f) return uint16_t(sign | 0x7c00);
    if (size < 0x1p-14f) {
      // Adding 1/2 leaves the last bit of a subnormal half as the last bit of the float.
      uint32_t sum = __builtin_bit_cast(uint32_t, size + 0.5f);
      return uint16_t(sign | (sum - __builtin_bit_cast(uint32_t, 0.5f)));
    }
    uint32_t to_even = 0xfff + (bits >> 13 & 1);
    return uint16_t(sign | ((bits + to_even - (112u << 23)) >> 13));
  }
};

template <class Format>
struct narrow_float {
  uint16_t bits;

  narrow_float() = default;
  template <class A, class = enable_if_t<is_arithmetic_v<A>>>
  METAL_INLINE explicit(!Format::template converts_from<A>) constexpr narrow_float(A value)
      : bits(Format::encode(float(value))) {}
  METAL_INLINE constexpr operator float() const { return Format::decode(bits); }

  METAL_INLINE friend constexpr narrow_float operator-(narrow_float a) {
    return narrow_float(-float(a));
  }
// With another of its kind or an integer the result is narrow, with a wider float it is a float.
#define METAL_OPERATOR(op)                                                                \
  METAL_INLINE friend constexpr narrow_float operator op(narrow_float a, narrow_float b) { \
    return narrow_float(float(a) op float(b));                                            \
  }                                                                                       \
  template <class A, class = enable_if_t<is_arithmetic_v<A> && !is_narrow<A>>>            \
  METAL_INLINE friend constexpr auto operator op(narrow_float a, A b) {                   \
    return conditional_t<std::is_integral_v<A>, narrow_float, float>(float(a) op float(b)); \
  }                                                                                       \
  template <class A, class = enable_if_t<is_arithmetic_v<A> && !is_narrow<A>>>            \
  METAL_INLINE friend constexpr auto operator op(A a, narrow_float b) {                   \
    return conditional_t<std::is_integral_v<A>, narrow_float, float>(float(a) op float(b)); \
  }                                                                                       \
  METAL_INLINE friend constexpr narrow_float& operator op##=(narrow_float& a, narrow_float b) { \
    return a = a op b;                                                                    \
  }
  METAL_OPERATOR(+)
  METAL_OPERATOR(-)
  METAL_OPERATOR(*)
  METAL_OPERATOR(/)
#undef METAL_OPERATOR
};

template <class Format>
struct is_floating_point<narrow_float<Format>> : true_type {};

}  // namespace metal
