"""A checkpoint's tensors, checked, cast and in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from tinyllm_ops import QuantizedTensor

from tinyllm_qwen.config import QwenConfig
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.manifest import FLOATING, check_manifest, expected_shapes
from tinyllm_qwen.quantization import PackedFormat
from tinyllm_qwen.safetensors_file import TensorEntry, read_header
from tinyllm_qwen.shards import find_shards

__all__ = ["Progress", "Weights", "expected_shapes", "load_weights"]

Weights = dict[str, mx.array | QuantizedTensor]
Progress = Callable[[int, int], None]

# What is read between two evaluations: large enough that their cost vanishes, small enough that
# originals and casts of one batch are little beside the model.
_BATCH_BYTES = 8 << 20
_PREFIX = "model."
_MLX_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Where a tensor is: its file, its name there, and what the file's header says of it."""

    shard: Path
    key: str
    entry: TensorEntry


def load_weights(
    folder: Path,
    config: QwenConfig,
    *,
    dtype: mx.Dtype | None = None,
    progress: Progress | None = None,
) -> Weights:
    """Load every tensor that the config implies, by its Hugging Face name less "model.".

    Quantized matrices stay packed, as one `QuantizedTensor` under the name of their weight.
    Beside the result, memory holds at most one batch of originals.

    Args:
        folder: a checkpoint: model.safetensors, or shards and their index.
        config: its config.
        dtype: of every floating tensor; None keeps that of the files (where they mix several,
            the narrowest that holds them all exactly).
        progress: called with the bytes read so far and in all.

    Raises:
        CheckpointError: if a file is missing or damaged, or its tensors do not fit the config.
        ValueError: if `dtype` is not float32, float16 or bfloat16.
    """
    if dtype is not None and dtype not in _MLX_DTYPES.values():
        raise ValueError(f"dtype: expected float32, float16 or bfloat16, got {dtype}")
    stored = _find_tensors(folder, config)
    formats = check_manifest(
        config, {name: place.entry for name, place in stored.items()}, str(folder)
    )
    arrays = _read(stored, dtype or _common_dtype(stored), progress)
    return _pack(arrays, formats)


def _find_tensors(folder: Path, config: QwenConfig) -> dict[str, _Stored]:
    """The tensors of all shards by name less "model.", without those that no model needs."""
    stored: dict[str, _Stored] = {}
    for shard in find_shards(folder):
        for key, entry in read_header(shard).items():
            name = key.removeprefix(_PREFIX)
            # Frequencies follow from rope_theta; a tied head is a second copy of the embedding.
            if name.endswith("rotary_emb.inv_freq"):
                continue
            if config.tie_word_embeddings and name.startswith("lm_head."):
                continue
            if name in stored:
                raise CheckpointError(
                    f"{shard}: {key[:80]} occurs twice, here and as {stored[name].key[:80]} in "
                    f"{stored[name].shard.name}: download the checkpoint again"
                )
            stored[name] = _Stored(shard=shard, key=key, entry=entry)
    return stored


def _common_dtype(stored: dict[str, _Stored]) -> mx.Dtype:
    """The one floating dtype of the files, or float32 where they mix: it holds the others."""
    dtypes = {place.entry.dtype for place in stored.values() if place.entry.dtype in FLOATING}
    return _MLX_DTYPES[dtypes.pop()] if len(dtypes) == 1 else mx.float32


def _read(
    stored: dict[str, _Stored], dtype: mx.Dtype, progress: Progress | None
) -> dict[str, mx.array]:
    """Read, cast and evaluate batch by batch; originals go as soon as their batch is done."""
    total = sum(place.entry.nbytes for place in stored.values())
    done = waiting = 0
    result: dict[str, mx.array] = {}
    batch: list[mx.array] = []
    lazy: dict[str, mx.array] = {}
    shard: Path | None = None
    last = len(stored) - 1
    for position, (name, place) in enumerate(stored.items()):
        if place.shard != shard:
            shard, lazy = place.shard, _open(place.shard)
        array = lazy.pop(place.key)
        result[name] = array.astype(dtype) if place.entry.dtype in FLOATING else array
        del array
        batch.append(result[name])
        waiting += place.entry.nbytes
        if waiting < _BATCH_BYTES and position != last:
            continue
        mx.eval(batch)
        batch.clear()
        done, waiting = done + waiting, 0
        if progress is not None:
            progress(done, total)
    return result


def _open(shard: Path) -> dict[str, mx.array]:
    """The arrays of a file; none is read before it is evaluated."""
    try:
        arrays = mx.load(str(shard), format="safetensors")
    except RuntimeError as error:
        raise CheckpointError(f"{shard} cannot be read: {error}: download it again") from error
    if not isinstance(arrays, dict):
        raise CheckpointError(f"{shard}: expected named tensors, got {type(arrays).__name__}")
    return arrays


def _pack(arrays: dict[str, mx.array], formats: dict[str, PackedFormat]) -> Weights:
    """Join the parts of every packed matrix into one value."""
    weights: Weights = dict(arrays)
    for path, packed in formats.items():
        name, scales, biases = f"{path}.weight", f"{path}.scales", f"{path}.biases"
        weights[name] = QuantizedTensor(
            packed=arrays[name],
            scales=arrays[scales],
            biases=arrays[biases],
            group_size=packed.group_size,
            bits=packed.bits,
            mode=packed.mode,
        )
        del weights[scales], weights[biases]
    return weights
