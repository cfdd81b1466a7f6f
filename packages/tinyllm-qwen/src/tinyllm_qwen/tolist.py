"""Typed names of `mx.array.tolist`, whose stub returns numbers or lists of any depth.

Each is the method itself and not a function around it, so that a type costs no call in a step.
"""

from collections.abc import Callable
from typing import TypeAlias, cast

import mlx.core as mx
from jaxtyping import Float, Integer

_Ints: TypeAlias = Callable[[Integer[mx.array, "N"]], list[int]]
_IntRows: TypeAlias = Callable[[Integer[mx.array, "R N"]], list[list[int]]]
_Floats: TypeAlias = Callable[[Float[mx.array, "N"]], list[float]]
_FloatRows: TypeAlias = Callable[[Float[mx.array, "R N"]], list[list[float]]]

ints = cast(_Ints, mx.array.tolist)
"""Wait for the device, and return the integers of a vector."""

int_rows = cast(_IntRows, mx.array.tolist)
"""Wait for the device, and return the integers of each row of a matrix."""

floats = cast(_Floats, mx.array.tolist)
"""Wait for the device, and return the numbers of a vector."""

float_rows = cast(_FloatRows, mx.array.tolist)
"""Wait for the device, and return the numbers of each row of a matrix."""
