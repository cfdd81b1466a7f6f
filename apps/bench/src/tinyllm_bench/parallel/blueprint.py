"""A model without its weights: what they would take."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import mlx.core as mx
from tinyllm_ops.quantization.tensor import AFFINE
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.schema import check_schema
from tinyllm_qwen.checkpoint.stored_tensor import find_tensors
from tinyllm_qwen.checkpoint.weights import expected_shapes
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.parallel.partition import Partition

from tinyllm_bench.model_cost import decode_cost
from tinyllm_bench.shapes import published_config
from tinyllm_bench.weight_format import DTYPES, WeightFormat


@dataclass(frozen=True)
class Blueprint:
    """An architecture, and how its matrices are stored.

    Attributes:
        name: of the shape, or of the checkpoint.
        config: the whole model.
        dtype: of the arithmetic, and of all that is not packed.
        formats: of the matrices that are packed, by module path.
    """

    name: str
    config: QwenConfig
    dtype: mx.Dtype
    formats: Mapping[str, PackedFormat] = field(default_factory=dict)

    @classmethod
    def of_shape(cls, shape: str, bits: int, group_size: int, mode: str, dtype: str) -> "Blueprint":
        """A shape whose matrices are all packed alike, or not at all.

        Raises:
            UsageError: if there is no such shape or format.
        """
        config = QwenConfig.from_hf(published_config(shape))
        form = WeightFormat.choose(bits, group_size, mode, dtype, gpu=True)
        if not form.packed:
            return cls(shape, config, form.dtype)
        packed = PackedFormat(group_size=form.group_size, bits=form.bits, mode=form.mode)
        matrices = [name for name, size in expected_shapes(config).items() if len(size) > 1]
        formats = {name.removesuffix(".weight"): packed for name in matrices}
        return cls(shape, config, form.dtype, formats)

    @classmethod
    def of_checkpoint(cls, model: str, dtype: str) -> "Blueprint":
        """A checkpoint, of which the headers are read alone.

        Raises:
            CheckpointError, HubError: if it cannot be had.
        """
        folder = resolve(model)
        config = QwenConfig.from_folder(folder)
        formats = check_schema(config, find_tensors(folder, config), str(folder))
        return cls(model, config, DTYPES[dtype], formats)

    def read_bytes(self, rank: int, size: int, keys: int) -> int:
        """What one of several ranks reads for a token that sees `keys` tokens.

        Of experts it is the share that a rank has on average.

        Raises:
            ValueError: if the model cannot be shared by so many.
        """
        partition = Partition.of(self.config, self.formats, rank, size)
        nbytes: dict[str, int] = {}
        for name, shape in expected_shapes(self.config).items():
            part = partition.slices(name, shape, self.config)
            if part is not None:
                nbytes[name] = self._nbytes(name, tuple(map(len, part)))
        return decode_cost(partition.local(self.config), nbytes, keys, self.dtype.size).bytes

    def _nbytes(self, name: str, shape: tuple[int, ...]) -> int:
        packed = self.formats.get(name.removesuffix(".weight"))
        if packed is None:
            return WeightFormat(self.dtype.size * 8, 64, AFFINE, self.dtype).nbytes(shape)
        form = WeightFormat(packed.bits, packed.group_size, packed.mode, self.dtype)
        return form.nbytes(shape)
