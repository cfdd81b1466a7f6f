"""The element types of arrays, by the names of MLX, Metal and NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ElementType:
    """One of them.

    Attributes:
        name: in MLX and NumPy, such as `"bfloat16"`.
        metal: in the text that MLX generates.
        storage: what NumPy keeps it in; it knows no bfloat16 and gets the bits.
    """

    name: str
    metal: str
    storage: np.dtype[np.generic]


def _types() -> dict[str, ElementType]:
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    metal = {name: f"{name}_t" for name in [*integers, "float16", "bfloat16"]}
    metal |= {"float32": "float", "bool": "bool"}
    storage = {"bfloat16": "uint16"}
    return {
        name: ElementType(name, written, np.dtype(storage.get(name, name)))
        for name, written in metal.items()
    }


TYPES = _types()


def element_type(dtype: object) -> ElementType:
    """The type that an MLX dtype, a NumPy dtype or scalar type, or a name stands for.

    Raises:
        ValueError: if Metal kernels of MLX have no such type.
    """
    if isinstance(dtype, str):
        name = dtype
    elif isinstance(dtype, np.dtype):
        name = dtype.name
    elif isinstance(dtype, type):
        name = np.dtype(dtype).name
    else:
        name = str(dtype).removeprefix("mlx.core.")
    if name not in TYPES:
        raise ValueError(f"dtype: expected one of {', '.join(TYPES)}, got {dtype!r}")
    return TYPES[name]
