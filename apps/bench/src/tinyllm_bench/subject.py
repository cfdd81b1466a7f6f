"""The model that is measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import mlx.core as mx
from tinyllm_ops import QuantizedTensor, Weight
from tinyllm_ops.quantization.tensor import AFFINE
from tinyllm_qwen import QwenConfig
from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.weights import expected_shapes, load_weights
from tinyllm_qwen.config.json_object import read_json_object

from tinyllm_bench.errors import UsageError
from tinyllm_bench.machine import on_gpu
from tinyllm_bench.memory import available_memory, check_memory
from tinyllm_bench.random_weights import random_weights
from tinyllm_bench.settings import Settings
from tinyllm_bench.shapes import published_config
from tinyllm_bench.weight_format import DTYPES, WeightFormat

# Float arrays as large as the largest matrix that are alive at once where one is dequantized.
_DEQUANTIZING = 4


@dataclass(frozen=True)
class Subject:
    """An architecture and its weights.

    Attributes:
        name: of the shape, or of the checkpoint.
        hf: its config.json, quantization included.
        config: the same, read.
        weights: every tensor.
        form: how matrices are stored, and the dtype of the arithmetic; of a checkpoint whose
            layers differ, how most of them are stored.
    """

    name: str
    hf: Mapping[str, object]
    config: QwenConfig
    weights: Mapping[str, Weight]
    form: WeightFormat

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(weight.nbytes for weight in self.weights.values())

    def arrays(self) -> Iterator[tuple[str, mx.array]]:
        """Every array by the name that it has in a checkpoint of mlx-lm."""
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
    def make(cls, settings: Settings) -> "Subject":
        """Draw random weights of a shape, or load a checkpoint.

        Raises:
            BenchError: if it does not fit into memory.
            CheckpointError, HubError: if a checkpoint cannot be had.
            UsageError: if the settings do not suit the model.
        """
        if settings.model is not None:
            return _load(settings, settings.model)
        hf = published_config(settings.shape)
        form = WeightFormat.choose(
            4 if settings.bits is None else settings.bits,
            64 if settings.group_size is None else settings.group_size,
            settings.mode or AFFINE,
            settings.dtype,
            gpu=on_gpu(),
        )
        if form.packed:
            packing = {"bits": form.bits, "group_size": form.group_size, "mode": form.mode}
            hf["quantization"] = packing
        config = QwenConfig.from_hf(hf)
        _check(settings, settings.shape, config, form)
        weights = random_weights(config, form)
        mx.eval([w if isinstance(w, mx.array) else w.arrays for w in weights.values()])
        return cls(settings.shape, hf, config, weights, form)


def _load(settings: Settings, model: str) -> Subject:
    """Load a checkpoint, in the dtype asked for or the one that suits the device."""
    folder = resolve(model)
    hf = read_json_object(folder / "config.json")
    config = QwenConfig.from_hf(hf, str(folder / "config.json"))
    dtype = DTYPES.get(settings.dtype, mx.bfloat16 if on_gpu() else mx.float32)
    form = WeightFormat(dtype.size * 8, 64, AFFINE, dtype)
    if config.quantization is not None:
        packing = config.quantization.default
        form = WeightFormat(packing.bits, packing.group_size, packing.mode, dtype)
    _check(settings, model, config, form)
    return Subject(model, hf, config, load_weights(folder, config, dtype=dtype), form)


def _check(settings: Settings, name: str, config: QwenConfig, form: WeightFormat) -> None:
    """Refuse a text that the model cannot follow, and a model that memory cannot hold."""
    longest = max(settings.prompt_tokens, settings.keys_before + settings.decode_tokens)
    if longest > config.context_length:
        raise UsageError(
            f"--prompt-tokens, --context, --decode-tokens: expected a text of at most "
            f"{config.context_length} tokens, the context of {name}, got {longest}"
        )
    available = available_memory(gpu=on_gpu())
    check_memory(f"{name} at {form.bits} bits", needed_memory(settings, config, form), available)


def needed_memory(settings: Settings, config: QwenConfig, form: WeightFormat) -> int:
    """Bytes that the run will hold at its height, with a tenth to spare."""
    shapes = expected_shapes(config).values()
    weights = sum(form.nbytes(shape) for shape in shapes)
    scratch = 0
    if form.packed and (not settings.ops or "reference" in settings.ops):
        largest = max(shape[-1] * shape[-2] for shape in shapes if len(shape) > 1)
        scratch = _DEQUANTIZING * largest * 4
    tokens = settings.keys_before + settings.decode_tokens
    keys = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    # A cache for each OpSet and peer of today, and the keys of a batch for one layer.
    caches = (4 * keys + 2 * keys * settings.batch // config.num_hidden_layers) * tokens
    scores = config.num_attention_heads * settings.prompt_tokens**2 * 4
    return int(1.1 * (weights + scratch + caches * form.dtype.size + 3 * scores))
