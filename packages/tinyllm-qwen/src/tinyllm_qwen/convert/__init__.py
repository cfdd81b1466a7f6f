"""Conversion of a checkpoint to MLX's format, quantized or not, one tensor at a time."""
