"""The OpSets that this package brings."""

from tinyllm_ops.mlx_fast import MLX
from tinyllm_ops.reference import REFERENCE

OPSETS = (REFERENCE, MLX)
