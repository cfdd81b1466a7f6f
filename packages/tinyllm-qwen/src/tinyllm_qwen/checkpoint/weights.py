"""The loader of weights, which checks, casts and reads the tensors of a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import mlx.core as mx
from tinyllm_layers.backend import bytes_as_loaded
from tinyllm_ops import QuantizedTensor, Weight

from tinyllm_qwen.checkpoint.joint_projections import split_projections
from tinyllm_qwen.checkpoint.memory_check import check_memory
from tinyllm_qwen.checkpoint.schema import FLOATING, check_schema, is_draft_head
from tinyllm_qwen.checkpoint.slice_reader import read_slices
from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor, find_tensors
from tinyllm_qwen.checkpoint.tensor_reader import MLX_DTYPES, Progress, iterate_tensors
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import DraftHeadError
from tinyllm_qwen.partition.partition import Partition
from tinyllm_qwen.partition.split import HEADS, Split

Weights = dict[str, Weight]


def load_weights(
    folder: Path,
    config: QwenConfig,
    *,
    dtype: mx.Dtype | None = None,
    progress: Progress | None = None,
    draft_head: bool = False,
    prepared_bytes: Callable[[Weight], int] = bytes_as_loaded,
) -> Weights:
    """Load every tensor that the config requires, by its Hugging Face name without "model.".

    A quantized matrix stays packed, as one `QuantizedTensor` under the name of its weight. Joint
    projections are separate; see `split_projections`. In addition to the result, memory holds at
    most one batch of tensors before their cast.

    Args:
        folder: a folder with model.safetensors, or with shards and an index.
        config: the config of the checkpoint.
        dtype: the dtype of every floating tensor. None keeps the dtype of the files. If they have
            several dtypes, it is that of most bytes, packed matrices not counted.
        progress: a callback with the number of bytes read so far, and of all bytes.
        draft_head: True to load the draft head (`mtp.*`) too.
        prepared_bytes: the size of a weight for the check of memory; see `Backend`.

    Raises:
        CheckpointError: if a file is missing or damaged, its tensors do not fit the config, the
            files have no draft head and `draft_head` asks for it, or the free memory is too
            little for the weights.
        ValueError: if `dtype` is not float32, float16 or bfloat16.
    """
    stored, formats = _find(folder, config, dtype, draft_head=draft_head)
    dtype = dtype or _common_dtype(stored)
    check_memory(folder, stored, dtype, prepared_bytes=_size(formats, prepared_bytes))
    arrays = dict(iterate_tensors(stored, dtype, progress))
    return _model_weights(arrays, formats, config)


def load_part(
    folder: Path,
    config: QwenConfig,
    rank: int,
    size: int,
    *,
    split: Split = HEADS,
    dtype: mx.Dtype | None = None,
    progress: Progress | None = None,
    prepared_bytes: Callable[[Weight], int] = bytes_as_loaded,
    local_ranks: Sequence[int] = (),
    free: int | None = None,
) -> tuple[Weights, list[Partition]]:
    """Load the slices of the tensors that one of several ranks needs, without reading the rest.

    Args:
        folder: the checkpoint, as for `load_weights`.
        config: the config of the whole model.
        rank: the rank of this process.
        size: the number of ranks.
        split: the division of the model, by heads or by layers.
        dtype: the dtype, as for `load_weights`.
        progress: a callback with the number of bytes read so far, and of all bytes of this rank.
        prepared_bytes: the size of a weight, as for `load_weights`.
        local_ranks: the ranks on this machine, whose weights must fit into its memory together.
            They may leave out `rank`.
        free: the free bytes of the machine before any rank reads weights; None to find them.

    Returns:
        The weights of this rank, and the partitions of all ranks.

    Raises:
        CheckpointError: as in `load_weights`.
        ValueError: if the model cannot be divided between `size` ranks, or as in `load_weights`.
    """
    stored, formats = _find(folder, config, dtype)
    partitions = [
        Partition.stage(config, each, size, split.layers)
        if split.by_layers
        else Partition.of(config, formats, each, size)
        for each in range(size)
    ]
    wanted, *others = (
        {
            name: part
            for name, tensor in stored.items()
            if (part := partitions[each].slices(name, tensor.shape, config)) is not None
        }
        for each in (rank, *(other for other in local_ranks if other != rank))
    )
    dtype = dtype or _common_dtype(stored)
    size_of = _size(formats, prepared_bytes)
    check_memory(folder, stored, dtype, [wanted, *others], prepared_bytes=size_of, free=free)
    arrays = read_slices(stored, wanted, dtype, progress)
    return _model_weights(arrays, _formats_of(arrays, formats), config), partitions


def _find(
    folder: Path, config: QwenConfig, dtype: mx.Dtype | None, *, draft_head: bool = False
) -> tuple[dict[str, StoredTensor], dict[str, PackedFormat]]:
    """Find the tensors and their formats, and check that they fit the config."""
    if dtype is not None and dtype not in MLX_DTYPES.values():
        raise ValueError(f"dtype: expected float32, float16 or bfloat16, got {dtype}")
    stored = find_tensors(folder, config)
    if not draft_head:  # as in mlx-lm, a head that is not used need not fit
        stored = {name: tensor for name, tensor in stored.items() if not is_draft_head(name)}
    formats = check_schema(config, stored, str(folder))
    if draft_head:
        _check_draft_head(stored, config, folder)
    return stored, formats


def _check_draft_head(stored: dict[str, StoredTensor], config: QwenConfig, folder: Path) -> None:
    """Raise DraftHeadError unless the files have a draft head of one layer."""
    if not any(map(is_draft_head, stored)):
        raise DraftHeadError(
            f"{folder}: expected a draft head (mtp.*), got files without one: published files of "
            "Qwen3-Next and Qwen3.5 have one, mlx-lm drops it, and `convert` keeps that of "
            "Qwen3.5: use such files, or run the model without its draft head"
        )
    if config.mtp_layers != 1:
        raise DraftHeadError(
            f"{folder}: expected a draft head of 1 layer, got mtp_num_hidden_layers = "
            f"{config.mtp_layers}: run the model without its draft head"
        )


def _common_dtype(stored: dict[str, StoredTensor]) -> mx.Dtype:
    """Return the floating dtype of the files: that of most bytes, if they have several dtypes.

    The scales and biases of packed matrices do not count: some exporters write them in float16,
    whatever the dtype of the model is. Nor do the vectors of a recurrent layer: 16-bit checkpoints
    store some of them in float32.
    """
    sizes = dict.fromkeys(FLOATING, 0)
    for name, tensor in stored.items():
        is_packed = name.endswith((".scales", ".biases"))
        is_recurrent = ".linear_attn." in name and len(tensor.shape) == 1
        if tensor.dtype in FLOATING and not (is_packed or is_recurrent):
            sizes[tensor.dtype] += tensor.nbytes
    return MLX_DTYPES[max(sizes, key=sizes.__getitem__)]


def _size(
    formats: dict[str, PackedFormat], prepared_bytes: Callable[[Weight], int]
) -> Callable[[dict[str, mx.array]], int]:
    """Return a function of the arrays of the files, which returns their size once prepared.

    Joint projections count as one matrix, since separating them evaluates the arrays.
    """
    return lambda arrays: sum(
        map(prepared_bytes, _pack(arrays, _formats_of(arrays, formats)).values())
    )


def _formats_of(
    arrays: Mapping[str, mx.array], formats: Mapping[str, PackedFormat]
) -> dict[str, PackedFormat]:
    """Return the formats of those packed matrices that some arrays contain."""
    return {path: packed for path, packed in formats.items() if f"{path}.weight" in arrays}


def _model_weights(
    arrays: dict[str, mx.array], formats: dict[str, PackedFormat], config: QwenConfig
) -> Weights:
    """Return the weights of the model, given the arrays of the files."""
    weights = _pack(arrays, formats)
    arrays.clear()  # the weights alone refer to the arrays, so that those that are split are freed
    split_projections(weights, config)
    return weights


def _pack(arrays: dict[str, mx.array], formats: dict[str, PackedFormat]) -> Weights:
    """Join codes, scales and biases of each packed matrix to a `QuantizedTensor`."""
    weights: Weights = dict(arrays)
    for path, packed in formats.items():
        name, scales, biases = f"{path}.weight", f"{path}.scales", f"{path}.biases"
        weights[name] = QuantizedTensor(
            packed=arrays[name],
            scales=arrays[scales],
            biases=arrays.get(biases),
            group_size=packed.group_size,
            bits=packed.bits,
            mode=packed.mode,
        )
        del weights[scales]
        weights.pop(biases, None)
    return weights
