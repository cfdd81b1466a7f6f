"""The formats of packed weights, as MLX writes them into `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tinyllm_ops.quantization.tensor import (
    AFFINE,
    AFFINE_BITS,
    AFFINE_GROUPS,
    FLOAT_MODES,
    QUANTIZATION_MODES,
    QuantizationMode,
    is_quantization_mode,
)

from tinyllm_qwen.config.fields import Fields, label, show
from tinyllm_qwen.config.module_path import VISION, module_path
from tinyllm_qwen.errors import CheckpointError

_SETTINGS = frozenset({"group_size", "bits", "mode", "global_scale"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """The format of a packed matrix: codes of `bits` bits, and a scale per `group_size` codes.

    In mode "affine", each group also has a bias. In the modes "mxfp4", "mxfp8" and "nvfp4", codes
    are floating-point numbers.
    """

    group_size: int
    bits: int
    mode: QuantizationMode = AFFINE

    @classmethod
    def from_hf(cls, settings: dict[str, object], source: str) -> "PackedFormat":
        """Read the fields group_size, bits and mode of `settings`.

        Raises:
            CheckpointError: if a setting is missing, or MLX does not support the format.
        """
        fields = Fields(settings, source)
        mode = fields.text("mode") or AFFINE
        if not is_quantization_mode(mode):
            raise fields.error("mode", f"one of {', '.join(QUANTIZATION_MODES)}")
        if fields.flag("global_scale", default=False):
            raise CheckpointError(
                f"{source}: a global scale (nvfp4 with one more scale a matrix) is not implemented "
                "yet: quantize the model without it"
            )
        bits = fields.integer("bits", 1, 64)
        group_size = fields.integer("group_size", 1, 1 << 16)
        if mode in FLOAT_MODES:
            if bits != FLOAT_MODES[mode][0]:
                raise fields.error("bits", f"{FLOAT_MODES[mode][0]}, as {mode} has")
            if group_size != FLOAT_MODES[mode][1]:
                raise fields.error("group_size", f"{FLOAT_MODES[mode][1]}, as {mode} has")
        elif group_size not in AFFINE_GROUPS:
            raise fields.error("group_size", f"one of {AFFINE_GROUPS}")
        elif bits not in AFFINE_BITS:
            raise fields.error("bits", f"one of {AFFINE_BITS}")
        return cls(group_size=group_size, bits=bits, mode=mode)

    @staticmethod
    def of_shapes(
        columns: int, words: int, groups: int, *, floating: bool
    ) -> "PackedFormat | None":
        """Return the format of a packed matrix whose arrays have these shapes; None if none has.

        Args:
            columns: the columns of the matrix.
            words: the 32-bit words of codes of a row.
            groups: the scales of a row.
            floating: True if scales are floating-point numbers, as in mode "affine" alone.
        """
        for packed in _FORMATS:
            fits = (columns * packed.bits, columns) == (words * 32, groups * packed.group_size)
            if fits and (packed.mode == AFFINE) == floating:
                return packed
        return None

    def arrays(self, path: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the arrays of a packed matrix by name, each with its dtype and shape.

        The dtypes are those of safetensors files. That of affine scales and biases is "", because
        it may be any floating dtype.

        Args:
            path: the module path of the matrix.
            shape: the shape before packing. The columns are a multiple of `group_size`.
        """
        *rows, columns = shape
        affine, groups = self.mode == AFFINE, (*rows, columns // self.group_size)
        arrays = {
            f"{path}.weight": ("U32", (*rows, columns * self.bits // 32)),
            f"{path}.scales": ("" if affine else "U8", groups),
        }
        return arrays | ({f"{path}.biases": ("", groups)} if affine else {})


_FORMATS = (
    *(PackedFormat(group_size=size, bits=bits) for size in AFFINE_GROUPS for bits in AFFINE_BITS),
    *(
        PackedFormat(group_size=FLOAT_MODES[mode][1], bits=FLOAT_MODES[mode][0], mode=mode)
        for mode in QUANTIZATION_MODES
        if mode != AFFINE
    ),
)
"""All formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The formats of the matrices of a checkpoint.

    Attributes:
        default: the format of every matrix that has scales and is not in `overrides`.
        overrides: the formats of other matrices, by module path without "model."; None for a matrix
            that is not packed.
    """

    default: PackedFormat
    overrides: Mapping[str, PackedFormat | None] = field(default_factory=dict, hash=False)

    def format_of(self, path: str) -> PackedFormat | None:
        """Return the format of the matrix at module path `path`; None if it is not packed."""
        return self.overrides.get(path, self.default)

    @classmethod
    def from_hf(
        cls, config: dict[str, object], source: str = "config.json"
    ) -> "Quantization | None":
        """Read the field `quantization` of a config, or `quantization_config` if it is absent.

        Args:
            config: the decoded config.json.
            source: the name of the config for error messages.

        Returns:
            The formats, or None for a checkpoint that is not quantized.

        Raises:
            CheckpointError: if MLX did not quantize the checkpoint, or the format is not supported.
        """
        fields = Fields(config, source)
        name = "quantization" if fields.raw("quantization") is not None else "quantization_config"
        table = fields.table(name)
        if table is None:
            return None
        method = table.get("quant_method")
        if method not in (None, "mlx"):
            raise CheckpointError(
                f"{source}: quantization by {show(method)} is not supported: use the original "
                "bfloat16 repository, or one that MLX quantized (mlx-community has many)"
            )
        default = PackedFormat.from_hf(table, f"{source}: {name}")
        overrides: dict[str, PackedFormat | None] = {}
        for key, value in table.items():
            if key in _SETTINGS or value is None or key.startswith(VISION):
                continue
            path = module_path(key)
            if isinstance(value, bool):
                overrides[path] = default if value else None
            elif value == {}:  # as in mlx-lm
                overrides[path] = None
            elif isinstance(value, dict):
                overrides[path] = PackedFormat.from_hf(value, f"{source}: {name}.{label(key)}")
            elif "." in key or key == "lm_head":  # others are of no module, such as a version
                raise CheckpointError(
                    f"{source}: {name}.{label(key)}: expected settings, true or false, got "
                    f"{show(value)}"
                )
        return cls(default=default, overrides=overrides)
