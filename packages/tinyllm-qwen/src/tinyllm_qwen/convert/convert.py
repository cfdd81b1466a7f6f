"""Conversion of a Hugging Face checkpoint to an MLX checkpoint, tensor by tensor."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from tinyllm_ops import MLX, QuantizedTensor

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.partial_folder import check_target, free_bytes, partial_folder
from tinyllm_qwen.checkpoint.safetensors_writer import SafetensorsWriter
from tinyllm_qwen.checkpoint.schema import check_schema, is_draft_head
from tinyllm_qwen.checkpoint.shards import INDEX, SINGLE
from tinyllm_qwen.checkpoint.stored_tensor import StoredTensor, find_tensors
from tinyllm_qwen.checkpoint.tensor_reader import Progress, iterate_tensors
from tinyllm_qwen.config.json_object import read_json_object
from tinyllm_qwen.config.quantization import PackedFormat
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.convert.config import ConversionConfig
from tinyllm_qwen.convert.plan import ConversionPlan, make_plan
from tinyllm_qwen.errors import ConversionError
from tinyllm_qwen.format_bytes import format_bytes
from tinyllm_qwen.regular_file import unreadable

# The number of weights that are packed at a time. On a CPU, MLX's float modes need 40 times the
# memory of the weights.
_NUMBERS = 1 << 20
_OVERHEAD_BYTES = 1 << 20  # upper bound of the size of config, index and headers

# Only files with these names are copied, so that no pickle and no code is copied.
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        folder: the new checkpoint.
        source_bytes: the size of the tensors before the conversion.
        nbytes: the size of the tensors after the conversion.
        bits_per_weight: the size of all tensors in bits, scales and norms included, divided by the
            number of parameters.
        unquantized: the module paths of matrices that are not packed.
        copied: the names of the files that were copied unchanged.
        notices: sentences about parts of the source that were not converted.
    """

    folder: Path
    source_bytes: int
    nbytes: int
    bits_per_weight: float
    unquantized: tuple[str, ...]
    copied: tuple[str, ...]
    notices: tuple[str, ...] = ()


def convert(
    path_or_repo: str | Path,
    target: Path,
    settings: ConversionConfig | None = None,
    *,
    revision: str | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write a checkpoint that MLX, mlx-lm and this package can read.

    Tensor names, codes and config equal the result of `mlx_lm.convert`. The conversion needs memory
    for about twice the largest tensor, whatever the size of the model. The stack of all experts of
    a layer counts as one tensor. The target folder appears only once it is complete.

    Args:
        path_or_repo: a folder or a repository, as for `load`, that is not quantized.
        target: a folder that does not exist yet, or is empty.
        settings: the settings of the conversion; None writes the same numbers under MLX's names.
        revision: the branch, tag or commit of a repository.
        progress: a callback with the number of converted bytes of the source, and of all bytes.

    Raises:
        ConversionError: if the target exists, the checkpoint is quantized already, memory or disk
            space is too small, or a weight exceeds the range of float16.
        CheckpointError: if the files are missing, damaged, or of a model that is not supported.
        HubError: if a repository cannot be fetched.
        ValueError: if the settings do not fit the model.
    """
    settings = settings or ConversionConfig()
    path = check_target(target)
    folder = resolve(path_or_repo, revision)
    description = read_json_object(folder / "config.json")
    config = QwenConfig.from_hf(description, str(folder / "config.json"))
    if config.quantization is not None:
        usual = config.quantization.default
        raise ConversionError(
            f"{path_or_repo} is quantized already ({usual.mode}, {usual.bits} bits): `chat` runs "
            "it as it is; for another format convert the original, unquantized checkpoint"
        )
    stored = find_tensors(folder, config)
    check_schema(config, stored, str(folder))
    notices = config.notices
    if config.model_type == "qwen3_next" and any(map(is_draft_head, stored)):
        # mlx-lm drops the draft head of other families as it loads them, and refuses this one.
        stored = {name: tensor for name, tensor in stored.items() if not is_draft_head(name)}
        notices += ("the draft head (mtp.*) is not converted: mlx-lm could not load the files",)
    plan = make_plan(config, stored, settings)
    copied = [folder / name for name in _COPIED if (folder / name).is_file()]
    _check_memory(plan, stored)
    _check_space(path, plan.nbytes + _OVERHEAD_BYTES + sum(file.stat().st_size for file in copied))
    with partial_folder(path) as partial:
        for file in copied:
            _copy(file, partial)
        _write_json(partial / "config.json", _describe(description, plan, settings))
        _write_tensors(partial, plan, stored, settings, progress)
    return Conversion(
        folder=path,
        source_bytes=sum(tensor.nbytes for tensor in stored.values()),
        nbytes=plan.nbytes,
        bits_per_weight=8 * plan.nbytes / plan.parameters,
        unquantized=plan.unquantized,
        copied=tuple(file.name for file in copied),
        notices=notices,
    )


def _write_tensors(
    folder: Path,
    plan: ConversionPlan,
    stored: Mapping[str, StoredTensor],
    settings: ConversionConfig,
    progress: Progress | None,
) -> None:
    """Read, pack and write every tensor, and then write the index of the shards."""
    done, total = 0, sum(tensor.nbytes for tensor in stored.values())
    source = iterate_tensors({t.source: stored[t.source] for t in plan.tensors}, settings.dtype)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(plan.shards, 1):
        count = len(plan.shards)
        file = SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        parts = {name: part for tensor in shard for name, part in tensor.parts.items()}
        weight_map |= dict.fromkeys(parts, file)
        with SafetensorsWriter(folder / file, parts) as writer:
            for tensor in shard:
                _, array = next(source)
                _check_range(tensor.name, array, stored[tensor.source].dtype)
                arrays = [array] if tensor.packed is None else pack_rows(array, tensor.packed)
                for name in tensor.parts:
                    writer.write(name, arrays.pop(0))
                del array, arrays  # free them before the next tensor is read
                mx.clear_cache()  # MLX would keep a free buffer for each size of tensor
                done += stored[tensor.source].nbytes
                if progress is not None:
                    progress(done, total)
    # A single file gets an index too: mlx-lm reads the names of files to download from the index.
    sizes = {"total_size": plan.nbytes, "total_parameters": plan.parameters}
    _write_json(folder / INDEX, {"metadata": sizes, "weight_map": dict(sorted(weight_map.items()))})


def _check_range(name: str, array: mx.array, stored_dtype: str) -> None:
    """Raise ConversionError if the cast to float16 made infinities.

    Scales and biases of finite weights are finite, so this check covers packed tensors too. The
    maximum and minimum need no temporary array.
    """
    if array.dtype != mx.float16 or stored_dtype == "F16":
        return
    if math.inf in (array.max().item(), -array.min().item()):
        raise ConversionError(
            f"{name}: expected weights from -65504 to 65504 for float16, got larger ones: use "
            "bfloat16 (--dtype bfloat16)"
        )


def pack_rows(weight: mx.array, packed: PackedFormat) -> list[mx.array]:
    """Pack a matrix `O I` or a stack of matrices `X O I`, some rows at a time.

    Returns:
        Codes, scales, and in affine mode biases. They equal the result of `mx.quantize` for the
        whole tensor, because rows are packed independently.
    """
    columns = weight.shape[-1]
    matrix = weight.reshape(-1, columns)
    step = max(1, _NUMBERS // columns)
    slices: list[QuantizedTensor] = []
    for start in range(0, matrix.shape[0], step):
        rows = matrix[start : start + step]
        q = MLX.quantize(rows, packed.group_size, packed.bits, packed.mode)
        mx.eval(q.arrays)
        slices.append(q)
    return [
        mx.concatenate(list(parts)).reshape(*weight.shape[:-1], -1)
        for parts in zip(*(q.arrays for q in slices), strict=True)
    ]


def _describe(
    description: dict[str, object], plan: ConversionPlan, settings: ConversionConfig
) -> dict[str, object]:
    """Return the config.json of the result."""
    # The vision tower is not converted.
    dropped = ("_name_or_path", "vision_config")
    new = {key: value for key, value in description.items() if key not in dropped}
    nested, tied = new.get("text_config"), new.get("tie_word_embeddings")
    if isinstance(nested, dict) and tied is not None:
        # mlx-lm reads this field here. At the top level it takes precedence: see QwenConfig.
        new["text_config"] = nested | {"tie_word_embeddings": tied}
    if settings.dtype is not None:
        _set_dtype(new, str(settings.dtype).removeprefix("mlx.core."))
    if settings.packed is not None:
        new["quantization"] = new["quantization_config"] = plan.quantization(settings.packed)
    return dict(sorted(new.items()))


def _set_dtype(description: dict[str, object], name: str) -> None:
    """Write the dtype into each table that has a field for it, or else into the top level."""
    nested = description.get("text_config")
    text = dict(nested) if isinstance(nested, dict) else {}
    fields = ("dtype", "torch_dtype")
    text |= {field: name for field in fields if field in text}
    if text:
        description["text_config"] = text
    present = [field for field in fields if field in description]
    if not present and not any(field in text for field in fields):
        present = ["torch_dtype"]
    description |= dict.fromkeys(present, name)


def _copy(file: Path, folder: Path) -> None:
    """Copy the contents of a file into a folder, without its permissions."""
    try:
        data = file.read_bytes()  # a tokenizer has 10 MB
    except OSError as error:
        raise unreadable(file, error) from error
    (folder / file.name).write_bytes(data)


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=4) + "\n", encoding="utf-8")


def _check_memory(plan: ConversionPlan, stored: Mapping[str, StoredTensor]) -> None:
    """Raise ConversionError if memory cannot hold the largest tensor before and after packing."""
    needed = max(2 * stored[tensor.source].nbytes + tensor.nbytes for tensor in plan.tensors)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ConversionError(
            f"the largest tensor needs {format_bytes(needed)} of memory, this machine has "
            f"{format_bytes(memory)}: convert on a larger one"
        )


def _check_space(path: Path, needed: int) -> None:
    """Raise ConversionError if the result does not fit on the disk of `path`."""
    free = free_bytes(path)
    if needed > free:
        raise ConversionError(
            f"{path} needs {format_bytes(needed)}, its disk has {format_bytes(free)} left: free "
            "some space, or name a folder on a larger disk"
        )
