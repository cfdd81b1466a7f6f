"""The devices on which MLX can compute on this machine."""

import os

import mlx.core as mx

# On NVIDIA GPUs and on the matrix units of Apple's M5, MLX multiplies float32 as TF32, with 10 bits
# of mantissa, unless this variable is 0 before the first product. Tolerances are those of float32.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

DEVICES = tuple(mx.Device(kind) for kind in (mx.cpu, mx.gpu) if mx.is_available(mx.Device(kind)))
