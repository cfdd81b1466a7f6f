"""The devices on which MLX can compute on this machine."""

import mlx.core as mx

DEVICES = tuple(mx.Device(kind) for kind in (mx.cpu, mx.gpu) if mx.is_available(mx.Device(kind)))
