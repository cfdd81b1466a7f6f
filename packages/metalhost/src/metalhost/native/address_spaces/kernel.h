// What the text of every kernel begins with.
#pragma once
#include "mlx_utils.h"

#define device METAL_DEVICE
#define constant METAL_CONSTANT
#define thread
#define kernel
