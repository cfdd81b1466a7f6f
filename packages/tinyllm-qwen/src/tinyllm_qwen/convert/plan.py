"""The plan of a conversion: the formats and files of all tensors, before any tensor is read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tinyllm_qwen.checkpoint.safetensors_file import DTYPE_BYTES
from tinyllm_qwen.checkpoint.safetensors_writer import DTYPES
from tinyllm_qwen.checkpoint.schema import is_draft_head, is_matrix, required_shapes
from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.convert.config import ConversionConfig

# Routers always have 8 bits, as in mlx-lm (but for Qwen2-MoE): a router is small, and a wrong
# choice of experts costs more quality than its bytes save.
ROUTER_FORMAT = PackedFormat(group_size=64, bits=8)
_ROUTERS = (".mlp.gate", ".shared_expert_gate")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTensor:
    """A tensor of the model, as the conversion will write it.

    Attributes:
        source: the name in the source checkpoint, without "model.".
        dtype: the dtype of unpacked numbers and affine scales, as spelled in safetensors files.
        shape: the shape before packing.
        packed: the format of a packed tensor; None if it is not packed.
        prefix: the prefix of the language model in MLX.
    """

    source: str
    dtype: str
    shape: tuple[int, ...]
    packed: PackedFormat | None
    prefix: str = ""

    @property
    def name(self) -> str:
        """The name of the tensor in MLX."""
        return mlx_name(self.source, self.prefix)

    @property
    def path(self) -> str:
        """The module path of the tensor in MLX."""
        return self.name.removesuffix(".weight")

    @property
    def parts(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each written array by name: the weight, or codes, scales, biases."""
        if self.packed is None:
            return {self.name: (self.dtype, self.shape)}
        arrays = self.packed.arrays(self.path, self.shape)
        return {name: (dtype or self.dtype, shape) for name, (dtype, shape) in arrays.items()}

    @property
    def nbytes(self) -> int:
        """The size of all written arrays in bytes."""
        return sum(math.prod(shape) * DTYPE_BYTES[dtype] for dtype, shape in self.parts.values())


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The tensors of each file, in the order of computation."""

    shards: tuple[tuple[PlannedTensor, ...], ...]

    @property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        """The tensors of all files."""
        return tuple(tensor for shard in self.shards for tensor in shard)

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes, without headers."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def unquantized(self) -> tuple[str, ...]:
        """The matrices that are not packed, by module path."""
        return tuple(
            t.path for t in self.tensors if t.packed is None and is_matrix(t.source, t.shape)
        )

    def quantization(self, default: PackedFormat) -> dict[str, object]:
        """Return the field `quantization` of config.json: the default format, and the routers."""
        routers = {
            tensor.path: {"group_size": ROUTER_FORMAT.group_size, "bits": ROUTER_FORMAT.bits}
            for tensor in self.tensors
            if tensor.packed is ROUTER_FORMAT
        }
        usual = {"group_size": default.group_size, "bits": default.bits, "mode": default.mode}
        return {**usual, **routers}


def mlx_name(source: str, prefix: str = "") -> str:
    """Return the name of a tensor in an MLX checkpoint.

    All names but those of the heads have "model.", after the prefix of the language model.
    """
    is_head = source.startswith("lm_head.") or is_draft_head(source)
    return prefix + (source if is_head else f"model.{source}")


def make_plan(
    config: QwenConfig, stored: Mapping[str, StoredTensor], settings: ConversionConfig
) -> ConversionPlan:
    """Decide the format and the file of every tensor.

    A matrix is packed if the length of its rows is a multiple of the group size and no pattern
    skips it. Embedding, head and experts are packed too.

    Args:
        config: the config of the checkpoint.
        stored: the tensors by name, checked by `check_schema`.
        settings: the settings of the conversion.

    Raises:
        ValueError: if a pattern matches no matrix, or no matrix can be packed.
    """

    def planned(name: str, shape: tuple[int, ...]) -> PlannedTensor:
        dtype = stored[name].dtype if settings.dtype is None else DTYPES[settings.dtype]
        return PlannedTensor(
            source=name,
            dtype="F32" if stored[name].float32 else dtype,
            shape=shape,
            packed=_format(name, shape, settings, config.mlx_prefix),
            prefix=config.mlx_prefix,
        )

    tensors = [planned(name, shape) for name, shape in required_shapes(config, stored).items()]
    _check_effect(tensors, settings)
    shards: list[list[PlannedTensor]] = []
    remaining = 0
    for tensor in tensors:
        if not shards or tensor.nbytes > remaining:
            shards.append([])
            remaining = settings.shard_bytes
        shards[-1].append(tensor)
        remaining -= tensor.nbytes
    return ConversionPlan(tuple(tuple(shard) for shard in shards))


def _format(
    name: str, shape: tuple[int, ...], settings: ConversionConfig, prefix: str
) -> PackedFormat | None:
    """Return the format of a tensor by the rules of mlx-lm; None if it is not packed."""
    path = mlx_name(name, prefix).removesuffix(".weight")
    if settings.packed is None or not is_matrix(name, shape) or _skipped(path, settings):
        return None
    packed = ROUTER_FORMAT if path.endswith(_ROUTERS) else settings.packed
    whole = not (shape[-1] % settings.packed.group_size or shape[-1] % packed.group_size)
    return packed if whole else None


def _skipped(path: str, settings: ConversionConfig) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in settings.skip)


def _check_effect(tensors: list[PlannedTensor], settings: ConversionConfig) -> None:
    """Raise ValueError if a setting has no effect."""
    matrices = [tensor.path for tensor in tensors if is_matrix(tensor.source, tensor.shape)]
    for pattern in settings.skip:
        if not any(fnmatchcase(path, pattern) for path in matrices):
            raise ValueError(
                f"skip: {pattern!r} matches no matrix: expected a path such as {matrices[-1]}, "
                "or a pattern such as '*.mlp.down_proj'"
            )
    if settings.packed is not None and all(tensor.packed is None for tensor in tensors):
        left = [
            t for t in tensors if is_matrix(t.source, t.shape) and not _skipped(t.path, settings)
        ]
        if not left:
            raise ValueError(
                f"nothing would be packed: skip leaves none of {len(matrices)} matrices"
            )
        raise ValueError(
            f"nothing would be packed: no matrix is left whose rows divide into groups of "
            f"{settings.packed.group_size}; their lengths are {sorted({t.shape[-1] for t in left})}"
        )
