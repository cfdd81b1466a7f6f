// Beginning of every unit for clang: declarations of MLX's own header, and Metal's keywords.
#pragma once
#include "metal_stdlib"

using namespace metal;

typedef half float16_t;
typedef bfloat bfloat16_t;

uint16_t bfloat16_to_uint16(bfloat16_t);
bfloat16_t uint16_to_bfloat16(uint16_t);

float log1p(float);
bfloat16_t log1p(bfloat16_t);

template <class Index = int64_t>
Index elem_to_loc(Index elem, const METAL_CONSTANT int* shape, const METAL_CONSTANT int64_t* strides,
                  int ndim);

template <class T>
struct Limits {
  static constexpr T max = T(1), min = T(1), finite_max = T(1), finite_min = T(1);
};

#define device METAL_DEVICE
#define constant METAL_CONSTANT
#define thread
#define kernel
