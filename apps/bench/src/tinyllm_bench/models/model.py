"""Model to measure: a published shape with random weights, or a checkpoint."""

import math
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from tinyllm_cli.messages import UsageError
from tinyllm_kernels.backend import on_gpu
from tinyllm_kernels.backend_choice import DTYPES
from tinyllm_layers import Backend
from tinyllm_ops import OpSet, QuantizedTensor, Weight
from tinyllm_ops.quantization.tensor import AFFINE
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.schema import expected_shapes, is_matrix
from tinyllm_qwen.checkpoint.weights import load_weights
from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.cost import weight_bytes
from tinyllm_bench.machine import available_memory, check_memory
from tinyllm_bench.models.random_weights import random_tensor, random_weights
from tinyllm_bench.models.weight_format import WeightFormat
from tinyllm_bench.opsets import choose_opsets, has_own_layout
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config

# Float arrays of the size of the largest matrix that exist at once while it is dequantized.
_DEQUANTIZED_ARRAYS = 4


@dataclass(frozen=True)
class BenchModel:
    """An architecture and its weights."""

    name: str  # name of the shape or of the checkpoint
    hf: Mapping[str, object]  # its config.json, quantization included
    config: QwenConfig  # the parsed config
    weights: MutableMapping[str, Weight]  # every tensor by name
    # Storage format of matrices. For a checkpoint with several formats, its default.
    format: WeightFormat
    # Bytes of each tensor as made. The layout of an OpSet can have wider codes.
    stored_bytes: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Store the sizes, before an OpSet changes the weights."""
        object.__setattr__(self, "stored_bytes", weight_bytes(self.weights))

    @property
    def nbytes(self) -> int:
        """Bytes of all weights as made."""
        return sum(self.stored_bytes.values())

    def arrays(self) -> Iterator[tuple[str, mx.array]]:
        """Yield every array with its name in a checkpoint of mlx-lm."""
        for name, weight in self.weights.items():
            full = name if name.startswith("lm_head.") else f"model.{name}"
            if not isinstance(weight, QuantizedTensor):
                yield full, weight
                continue
            path = full.removesuffix(".weight")
            yield full, weight.packed
            yield f"{path}.scales", weight.scales
            if weight.biases is not None:
                yield f"{path}.biases", weight.biases

    @classmethod
    def make(cls, settings: Settings) -> "BenchModel":
        """Draw random weights of a shape, or load a checkpoint.

        Raise `BenchError` if the model does not fit into memory.
        """
        if settings.model is not None:
            return cls._load(settings, settings.model)
        shape = settings.shape
        assert shape is not None  # Settings without a model have a shape
        hf = published_config(shape)
        weight_format = WeightFormat.choose(
            settings.bits,
            settings.group_size,
            settings.mode,
            settings.dtype,
            prefers_16_bits=_prefers_16_bits(settings),
        )
        if weight_format.is_quantized:
            names = ("bits", "group_size", "mode")
            hf["quantization"] = {name: getattr(weight_format, name) for name in names}
        config = QwenConfig.from_hf(hf)
        _check(settings, shape, config, weight_format)
        weights = random_weights(config, weight_format)
        mx.eval([w if isinstance(w, mx.array) else w.arrays for w in weights.values()])
        return cls(shape, hf, config, weights, weight_format)

    @classmethod
    def _load(cls, settings: Settings, name: str) -> "BenchModel":
        """Load a checkpoint in the requested dtype, or in the dtype that suits the OpSets."""
        folder = resolve(name)
        hf = read_json_object(folder / "config.json")
        config = QwenConfig.from_hf(hf, str(folder / "config.json"))
        usual = mx.bfloat16 if _prefers_16_bits(settings) else mx.float32
        dtype = DTYPES[settings.dtype] or usual
        weight_format = WeightFormat(dtype.size * 8, 64, AFFINE, dtype)
        if config.quantization is not None:
            packing = config.quantization.default
            weight_format = WeightFormat(packing.bits, packing.group_size, packing.mode, dtype)
        _check(settings, name, config, weight_format)
        return cls(name, hf, config, load_weights(folder, config, dtype=dtype), weight_format)


def _prefers_16_bits(settings: Settings) -> bool:
    """Return True if nothing measured is slow in 16 bits, as MLX's operations are on a CPU."""
    measured = {*settings.ops, *settings.chosen_peers}
    return on_gpu() or (bool(settings.ops) and measured.isdisjoint({"mlx", "reference", "mlx-lm"}))


def _check(settings: Settings, name: str, config: QwenConfig, weight_format: WeightFormat) -> None:
    """Check the length of the text against the model's context, and the model against memory."""
    longest = max(settings.prompt_tokens, settings.context_tokens + settings.decode_tokens)
    if longest > config.context_length:
        raise UsageError(
            f"--prompt-tokens, --context, --decode-tokens: expected a text of at most "
            f"{config.context_length} tokens, the context of {name}, got {longest}"
        )
    needed = needed_memory(settings, config, weight_format)
    check_memory(f"{name} at {weight_format.bits} bits", needed, available_memory(gpu=on_gpu()))


def _growth(ops: OpSet, weight_format: WeightFormat) -> float:
    """Return the size of a matrix in the layout of an OpSet, divided by its size as made."""
    if not isinstance(ops, Backend):
        return 1.0
    matrix = random_tensor((32, 512), weight_format, np.random.default_rng(0))
    return ops.prepared_bytes(matrix) / matrix.nbytes


def needed_memory(settings: Settings, config: QwenConfig, weight_format: WeightFormat) -> int:
    """Return the estimated peak memory of a run in bytes, plus 10 percent."""
    shapes = expected_shapes(config)
    made = sum(
        weight_format.nbytes(shape)
        if is_matrix(name, shape)
        else math.prod(shape) * weight_format.dtype.size
        for name, shape in shapes.items()
    )
    opsets = choose_opsets(settings.ops)
    # Weights as stored, in another layout, or both.
    layouts = {has_own_layout(ops): _growth(ops, weight_format) for ops in opsets}
    copies = {"mlx-lm", "openvino"}.intersection(settings.chosen_peers)
    weights = made * (sum(layouts.values()) + len(copies))
    scratch = 0
    if weight_format.is_quantized and (not settings.ops or "reference" in settings.ops):
        largest = max(shape[-1] * shape[-2] for shape in shapes.values() if len(shape) > 1)
        scratch = _DEQUANTIZED_ARRAYS * largest * 4
    tokens = settings.context_tokens + settings.decode_tokens
    kv = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    # Whole caches at a time: one for each OpSet and peer, or one for each sequence of a batch.
    programs = len(opsets) + len(settings.chosen_peers)
    caches = kv * max(programs, settings.batch if settings.times_ops else 0) * tokens
    scores = config.num_attention_heads * settings.prompt_tokens**2 * 4
    return int(1.1 * (weights + scratch + caches * weight_format.dtype.size + 3 * scores))
