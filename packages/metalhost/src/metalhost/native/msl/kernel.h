// What the text of every kernel begins with.
#pragma once
#include "mlx_utils.h"

// Metal's int8_t is char, which to C++ is a third type beside signed and unsigned char.
#define int8_t char

// To the host there is one address space; address_spaces.py has clang look at them. `threadgroup` is
// no macro: the translation, which has to understand it, writes METAL_THREADGROUP.
#define device
#define thread
#define METAL_THREADGROUP
#define kernel
