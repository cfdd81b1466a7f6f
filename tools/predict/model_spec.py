"""Model without its weights: an architecture and the formats of its matrices."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import mlx.core as mx
from tinyllm_bench.cost import ModelCosts
from tinyllm_bench.models.weight_format import WeightFormat
from tinyllm_bench.shapes import published_config
from tinyllm_kernels.backend_choice import DTYPES
from tinyllm_ops.quantization.tensor import AFFINE
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.schema import check_schema, expected_shapes
from tinyllm_qwen.checkpoint.stored_tensor import find_tensors
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.partition.partition import Partition


@dataclass(frozen=True)
class ModelSpec:
    """An architecture and the formats of its matrices.

    Attributes:
        name: name of the shape or of the checkpoint.
        config: the whole model.
        dtype: dtype of activations and of all tensors that are not quantized.
        formats: formats of quantized matrices, by module path.
    """

    name: str
    config: QwenConfig
    dtype: mx.Dtype
    formats: Mapping[str, PackedFormat] = field(default_factory=dict)

    @classmethod
    def of_shape(
        cls, shape: str, bits: int | None, group_size: int | None, mode: str | None, dtype: str
    ) -> "ModelSpec":
        """Return a shape whose matrices all have one format.

        Raises:
            UsageError: if there is no such shape or format.
        """
        config = QwenConfig.from_hf(published_config(shape))
        chosen = WeightFormat.choose(bits, group_size, mode, dtype, prefers_16_bits=True)
        if not chosen.is_quantized:
            return cls(shape, config, chosen.dtype)
        packed = PackedFormat(group_size=chosen.group_size, bits=chosen.bits, mode=chosen.mode)
        matrices = [name for name, size in expected_shapes(config).items() if len(size) > 1]
        formats = {name.removesuffix(".weight"): packed for name in matrices}
        return cls(shape, config, chosen.dtype, formats)

    @classmethod
    def of_checkpoint(cls, model: str, dtype: str) -> "ModelSpec":
        """Read the config and the headers of a checkpoint.

        Raises:
            CheckpointError, HubError: if it cannot be read.
        """
        folder = resolve(model)
        config = QwenConfig.from_folder(folder)
        formats = check_schema(config, find_tensors(folder, config), str(folder))
        return cls(model, config, DTYPES[dtype] or mx.bfloat16, formats)

    def read_bytes(self, rank: int, size: int, keys: int) -> int:
        """Return the bytes that one rank reads for a token that attends to `keys` tokens.

        Experts count with the mean share that a rank reads.

        Raises:
            ValueError: if the model cannot be divided among so many ranks.
        """
        partition = Partition.of(self.config, self.formats, rank, size)
        nbytes: dict[str, int] = {}
        for name, shape in expected_shapes(self.config).items():
            part = partition.slices(name, shape, self.config)
            if part is not None:
                nbytes[name] = self._nbytes(name, tuple(map(len, part)))
        costs = ModelCosts(local_config(partition, self.config), nbytes, self.dtype.size)
        return costs.decode(keys).bytes

    def _nbytes(self, name: str, shape: tuple[int, ...]) -> int:
        packed = self.formats.get(name.removesuffix(".weight"))
        if packed is None:
            return WeightFormat(self.dtype.size * 8, 64, AFFINE, self.dtype).nbytes(shape)
        chosen = WeightFormat(packed.bits, packed.group_size, packed.mode, self.dtype)
        return chosen.nbytes(shape)


def local_config(partition: Partition, config: QwenConfig) -> QwenConfig:
    """Return a config with the numbers of heads and of hidden features of one rank."""
    recurrent, experts = config.recurrent, config.experts
    return replace(
        config,
        num_attention_heads=len(partition.heads),
        num_key_value_heads=len(partition.kv_heads),
        intermediate_size=len(partition.mlp),
        experts=experts and replace(experts, shared_size=len(partition.shared_expert)),
        recurrent=recurrent and partition.local_recurrent(recurrent),
    )
