// The part of MLX's own header, which it puts before every kernel, that kernels may use.
#pragma once
#include "metal_stdlib"

using namespace metal;

typedef half float16_t;
typedef bfloat bfloat16_t;

METAL_INLINE uint16_t bfloat16_to_uint16(bfloat16_t x) { return as_type<uint16_t>(x); }
METAL_INLINE bfloat16_t uint16_to_bfloat16(uint16_t x) { return as_type<bfloat16_t>(x); }

// Where element number `elem` of a strided array is.
template <class Index = int64_t>
METAL_INLINE Index elem_to_loc(Index elem, const int* shape, const int64_t* strides, int ndim) {
  Index location = 0;
  for (int i = ndim - 1; i >= 0 && elem > 0; --i) {
    location += elem % shape[i] * Index(strides[i]);
    elem /= shape[i];
  }
  return location;
}

template <class T>
struct Limits {
  static constexpr T max = numeric_limits<T>::max(), min = numeric_limits<T>::min();
  static constexpr T finite_max = max, finite_min = min;
};
template <class T>
struct FloatLimits {
  static constexpr T max = numeric_limits<T>::infinity(), min = T(-numeric_limits<T>::infinity());
  static constexpr T finite_max = numeric_limits<T>::max();
  static constexpr T finite_min = numeric_limits<T>::lowest();
};
template <>
struct Limits<bool> {
  static constexpr bool max = true, min = false;
};
template <>
struct Limits<float> : FloatLimits<float> {};
template <>
struct Limits<half> : FloatLimits<half> {};
template <>
struct Limits<bfloat> : FloatLimits<bfloat> {};
