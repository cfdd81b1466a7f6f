// Beginning of every kernel's translation unit: the part of MLX's own header that kernels may use,
// and Metal's keywords. MLX puts its header before every kernel.
#pragma once
#include "metal_stdlib"

using namespace metal;

typedef half float16_t;
typedef bfloat bfloat16_t;

METAL_INLINE uint16_t bfloat16_to_uint16(bfloat16_t x) { return as_type<uint16_t>(x); }
METAL_INLINE bfloat16_t uint16_to_bfloat16(uint16_t x) { return as_type<bfloat16_t>(x); }

METAL_INLINE float log1p(float x) { return __builtin_log1pf(x); }
METAL_INLINE bfloat16_t log1p(bfloat16_t x) { return bfloat16_t(__builtin_log1pf(x)); }

// Returns the offset of element number `elem` in a strided array.
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

// Metal's int8_t is char. In C++, char is a type of its own beside signed char and unsigned char.
#define int8_t char

// The host has one address space; address_spaces.py checks them with clang. `threadgroup` is not a
// macro: the translation, which must understand every use, replaces it by METAL_THREADGROUP.
#define device
#define thread
#define METAL_THREADGROUP
#define kernel
