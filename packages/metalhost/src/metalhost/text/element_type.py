"""Element types of arrays, with their names in MLX, Metal and NumPy."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ElementType:
    """Element type of an array.

    Attributes:
        name: name in MLX and NumPy, such as `"bfloat16"`.
        metal: name in the text that MLX generates, such as `"bfloat16_t"`.
        storage: NumPy dtype of the same size. NumPy has no bfloat16, so that type is stored as
            uint16.
    """

    name: str
    metal: str
    storage: np.dtype[np.generic]


def _types() -> dict[str, ElementType]:
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    metal_names = {name: f"{name}_t" for name in [*integers, "float16", "bfloat16"]}
    metal_names |= {"float32": "float", "bool": "bool"}
    storage = {"bfloat16": "uint16"}
    return {
        name: ElementType(name, metal, np.dtype(storage.get(name, name)))
        for name, metal in metal_names.items()
    }


TYPES = _types()


def element_type(dtype: object) -> ElementType:
    """Return the element type of an MLX dtype, a NumPy dtype or scalar type, or a name.

    Raises:
        ValueError: if MLX's Metal kernels do not support the type.
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
