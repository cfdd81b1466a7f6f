"""The tensors that a conversion writes, known before the first one is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tinyllm_ops.quantization.tensor import AFFINE

from tinyllm_qwen.checkpoint.safetensors_file import DTYPE_BYTES
from tinyllm_qwen.checkpoint.schema import expected_shapes
from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor
from tinyllm_qwen.checkpoint.tensor_reader import MLX_DTYPES
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.convert.config import ConversionConfig

# A wrong choice of experts costs more than these few numbers: mlx-lm packs routers like this
# whatever the format of the rest.
ROUTER_FORMAT = PackedFormat(group_size=64, bits=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """A tensor of the model on its way to a file.

    Attributes:
        source: its name where it is read, without "model.".
        dtype: of the numbers that are not codes, as safetensors spells it.
        shape: of the numbers that it stands for.
        packed: its format; None if it is not packed.
    """

    source: str
    dtype: str
    shape: tuple[int, ...]
    packed: PackedFormat | None

    @property
    def path(self) -> str:
        """The module that it belongs to, by MLX's name."""
        return mlx_name(self.source).removesuffix(".weight")

    @property
    def parts(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The tensors of the file that it becomes, by name: dtype and shape of each."""
        name = mlx_name(self.source)
        if self.packed is None:
            return {name: (self.dtype, self.shape)}
        *rows, columns = self.shape
        groups = (*rows, columns // self.packed.group_size)
        affine = self.packed.mode == AFFINE
        parts = {
            name: ("U32", (*rows, columns * self.packed.bits // 32)),
            f"{self.path}.scales": (self.dtype if affine else "U8", groups),
        }
        return parts | ({f"{self.path}.biases": (self.dtype, groups)} if affine else {})

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(math.prod(shape) * DTYPE_BYTES[dtype] for dtype, shape in self.parts.values())


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """All tensors, in the order in which a token meets them, file by file."""

    shards: tuple[tuple[PlannedTensor, ...], ...]

    @property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        """All of them."""
        return tuple(tensor for shard in self.shards for tensor in shard)

    @property
    def nbytes(self) -> int:
        """Bytes of data, without headers."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """Numbers that the tensors stand for."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def unquantized(self) -> tuple[str, ...]:
        """The matrices that are not packed, by module path."""
        return tuple(t.path for t in self.tensors if t.packed is None and len(t.shape) > 1)

    def quantization(self, default: PackedFormat) -> dict[str, object]:
        """The formats as config.json has them: the usual one, and the modules that differ."""
        routers = {
            tensor.path: {"group_size": ROUTER_FORMAT.group_size, "bits": ROUTER_FORMAT.bits}
            for tensor in self.tensors
            if tensor.packed is ROUTER_FORMAT
        }
        usual = {"group_size": default.group_size, "bits": default.bits, "mode": default.mode}
        return {**usual, **routers}


def mlx_name(source: str) -> str:
    """The name of a tensor in an MLX checkpoint: the head is no part of "model"."""
    return source if source.startswith("lm_head.") else f"model.{source}"


def make_plan(
    config: QwenConfig, stored: Mapping[str, StoredTensor], recipe: ConversionConfig
) -> ConversionPlan:
    """Decide for every tensor what becomes of it.

    Packed are all matrices, the embedding, the head and the experts too, whose rows are whole
    groups and that no pattern skips.

    Args:
        config: of the checkpoint.
        stored: its tensors, by name; `check_schema` has passed them.
        recipe: the settings.

    Raises:
        ValueError: if a pattern of the recipe matches no matrix, or nothing could be packed.
    """
    names = {dtype: name for name, dtype in MLX_DTYPES.items()}
    tensors = [
        PlannedTensor(
            source=name,
            dtype=stored[name].dtype if recipe.dtype is None else names[recipe.dtype],
            shape=shape,
            packed=_format(name, shape, recipe),
        )
        for name, shape in expected_shapes(config).items()
    ]
    _check_effect(tensors, recipe)
    shards: list[list[PlannedTensor]] = []
    room = 0
    for tensor in tensors:
        if not shards or tensor.nbytes > room:
            shards.append([])
            room = recipe.shard_bytes
        shards[-1].append(tensor)
        room -= tensor.nbytes
    return ConversionPlan(tuple(tuple(shard) for shard in shards))


def _format(name: str, shape: tuple[int, ...], recipe: ConversionConfig) -> PackedFormat | None:
    """The format of a tensor, as mlx-lm decides it; None if it is not packed."""
    path = mlx_name(name).removesuffix(".weight")
    if recipe.packed is None or len(shape) < 2 or _skipped(path, recipe):
        return None
    packed = ROUTER_FORMAT if path.endswith(".mlp.gate") else recipe.packed
    whole = not (shape[-1] % recipe.packed.group_size or shape[-1] % packed.group_size)
    return packed if whole else None


def _skipped(path: str, recipe: ConversionConfig) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in recipe.skip)


def _check_effect(tensors: list[PlannedTensor], recipe: ConversionConfig) -> None:
    """Raise where a recipe asks for something that changes nothing."""
    matrices = [tensor.path for tensor in tensors if len(tensor.shape) > 1]
    for pattern in recipe.skip:
        if not any(fnmatchcase(path, pattern) for path in matrices):
            raise ValueError(
                f"skip: {pattern!r} matches no matrix: expected a path such as {matrices[-1]}, "
                "or a pattern such as '*.mlp.down_proj'"
            )
    if recipe.packed is not None and all(tensor.packed is None for tensor in tensors):
        raise ValueError(
            f"nothing would be packed: no matrix is left whose rows divide into groups of "
            f"{recipe.packed.group_size}; their lengths are "
            f"{sorted({tensor.shape[-1] for tensor in tensors if len(tensor.shape) > 1})}"
        )
