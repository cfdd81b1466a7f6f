"""The tensors of a checkpoint by name, with the files and slices that store them."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tinyllm_qwen.checkpoint.safetensors_file import DTYPE_BYTES, TensorEntry, read_header
from tinyllm_qwen.checkpoint.shards import find_shards
from tinyllm_qwen.config.module_path import VISION, module_path
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError

_PREFIX = "model."
_CONVOLUTION = "linear_attn.conv1d.weight"
_CENTRED_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "q_norm",
    "k_norm",
    "pre_fc_norm_embedding",
    "pre_fc_norm_hidden",
)

# Qwen publishes one tensor per expert, `mlp.experts.7.gate_proj.weight`. transformers 5 can store
# all experts in two tensors, `mlp.experts.gate_up_proj` and `mlp.experts.down_proj`. MLX stacks all
# experts in three tensors, such as `mlp.switch_mlp.gate_proj.weight`.
_SINGLE_EXPERT = re.compile(
    r"(?P<mlp>(?:mtp\.)?layers\.\d{1,4}\.mlp)\.experts\.(?P<expert>0|[1-9]\d{0,4})"
    r"\.(?P<rest>(?:gate|up|down)_proj\.(?:weight|scales|biases))"
)
_FUSED = re.compile(
    r"(?P<mlp>(?:mtp\.)?layers\.\d{1,4}\.mlp)\.experts\.(?P<which>gate_up|down)_proj"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A whole tensor of a file, or rows `start` to `stop` of each matrix in a stack.

    Attributes:
        shard: the file.
        key: the name of the tensor in the file.
        start: the first row.
        stop: the end of the rows; None for the whole tensor.
    """

    shard: Path
    key: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of the model, as the files of a checkpoint store it.

    Attributes:
        dtype: the dtype as spelled in safetensors files, such as "BF16".
        shape: the row-major shape of the whole tensor.
        pieces: one slice, or one slice for each expert.
        stacked: True if the slices are experts, to be stacked along a new first axis.
        transposed: True if the file has the last two of three axes in the other order.
        zero_centred: True if the model needs the stored numbers + 1.
        float32: True if the model needs float32, whatever the dtype of its other tensors.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[TensorSlice, ...]
    stacked: bool = False
    transposed: bool = False
    zero_centred: bool = False
    float32: bool = False

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def find_tensors(folder: Path, config: QwenConfig) -> dict[str, StoredTensor]:
    """Find the tensors of a checkpoint, by their Hugging Face names without "model.".

    Experts get the names of MLX, such as `mlp.switch_mlp.gate_proj.weight`, and the shape of the
    stack of all experts. Files may store experts stacked (MLX), one by one (as Qwen publishes
    most models), or with gate and up fused (transformers 5, and Qwen3-VL-MoE). Tensors that the
    model does not need are left out.

    Raises:
        CheckpointError: if a file is missing or damaged, or a tensor occurs twice.
    """
    found: dict[tuple[str, int | None], StoredTensor] = {}  # by name and number of the expert
    for name, shard, key, entry in _entries(folder, config):
        for part, tensor in _split(name, shard, key, entry, config):
            identity = _expert_of(part)
            if identity in found:
                other = found[identity].pieces[0]
                raise CheckpointError(
                    f"{shard}: {key[:80]} occurs twice, here and as {other.key[:80]} in "
                    f"{other.shard.name}: download the checkpoint again"
                )
            found[identity] = tensor
    stored: dict[str, StoredTensor] = {}
    experts: dict[str, dict[int, StoredTensor]] = {}
    for (name, expert), tensor in found.items():
        if expert is None:
            stored[name] = tensor
        else:
            experts.setdefault(name, {})[expert] = tensor
    for name, members in experts.items():
        if name in stored:
            raise CheckpointError(
                f"{folder}: {name} occurs twice, stacked and expert by expert: download the "
                "checkpoint again"
            )
        stored[name] = _stack(folder, name, members)
    return stored if config.recurrent is None else as_mlx(stored, str(folder))


def _entries(folder: Path, config: QwenConfig) -> Iterator[tuple[str, Path, str, TensorEntry]]:
    """Yield name in the model, file, name in the file and header entry of each needed tensor."""
    for shard in find_shards(folder):
        for key, entry in read_header(shard).items():
            name = module_path(key) if config.is_nested else key.removeprefix(_PREFIX)
            if not (_is_surplus(name, config) or (config.is_nested and key.startswith(VISION))):
                yield name, shard, key, entry


def as_mlx(stored: Mapping[str, StoredTensor], source: str) -> dict[str, StoredTensor]:
    """Return the tensors of a hybrid model in the format of MLX.

    Hugging Face and MLX store two things differently. The convolution has the shape `C 1 K` or
    `C K 1`, with its numbers in the same order. The norms are zero-centred (w - 1) or factors (w),
    except the norm in a recurrent layer, which is a factor in both. The shape of the convolution
    tells the formats apart, as in mlx-lm.

    Raises:
        CheckpointError: if the convolutions have both shapes.
    """
    shapes = {name: t.shape for name, t in stored.items() if name.endswith(_CONVOLUTION)}
    channels_first = [name for name, s in shapes.items() if len(s) == 3 and s[1] == 1 != s[2]]
    if channels_first and len(channels_first) < len(shapes):
        other = next(name for name in shapes if name not in channels_first)
        raise CheckpointError(
            f"{source}: {channels_first[0]} has the shape {shapes[channels_first[0]]} of Hugging "
            f"Face, {other} has {shapes[other]}: expected one format: download it again"
        )

    def converted(name: str, tensor: StoredTensor) -> StoredTensor:
        shape = tensor.shape
        return replace(
            tensor,
            shape=(shape[0], shape[2], 1) if name in channels_first else shape,
            zero_centred=bool(channels_first) and is_centred_norm(name),
            float32=name.endswith(".A_log"),
        )

    return {name: converted(name, tensor) for name, tensor in stored.items()}


def is_centred_norm(name: str) -> bool:
    """Return True for the norms that Hugging Face stores zero-centred."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and (
        module in ("norm", "mtp.norm") or module.rpartition(".")[2] in _CENTRED_NORMS
    )


def _is_surplus(name: str, config: QwenConfig) -> bool:
    """Return True for rotary frequencies, which follow from rope_theta, and for a tied head."""
    tied_head = config.tie_word_embeddings and name.startswith("lm_head.")
    return tied_head or name.endswith("rotary_emb.inv_freq")


def _expert_of(name: str) -> tuple[str, int | None]:
    """Return the name of the stacked tensor for an expert's tensor, and the number of the expert.

    A name that is not of a single expert is returned unchanged, with the number None.
    """
    match = _SINGLE_EXPERT.fullmatch(name)
    if match is None:
        return name, None
    return f"{match['mlp']}.switch_mlp.{match['rest']}", int(match["expert"])


def _separate_names(name: str) -> list[str]:
    """Return the names of the tensors that `name` holds: two if gate and up are fused, else one."""
    match = _FUSED.fullmatch(name)
    if match is None:
        return [name]
    parts = ("gate", "up") if match["which"] == "gate_up" else ("down",)
    return [f"{match['mlp']}.switch_mlp.{part}_proj.weight" for part in parts]


def _split(
    name: str, shard: Path, key: str, entry: TensorEntry, config: QwenConfig
) -> list[tuple[str, StoredTensor]]:
    """Return the tensor of an entry by name, or two tensors if gate and up are fused."""
    names, whole = _separate_names(name), TensorSlice(shard=shard, key=key)
    if names == [name] or len(entry.shape) != 3:
        return [(names[0], StoredTensor(dtype=entry.dtype, shape=entry.shape, pieces=(whole,)))]
    experts, rows, columns = entry.shape
    transposed = _is_transposed(len(names) == 2, rows, columns, config)
    if transposed:
        rows, columns = columns, rows

    def tensor(shape: tuple[int, ...], piece: TensorSlice) -> StoredTensor:
        return StoredTensor(dtype=entry.dtype, shape=shape, pieces=(piece,), transposed=transposed)

    if len(names) == 1 or rows % 2:
        return [(names[0], tensor((experts, rows, columns), whole))]
    half = rows // 2
    return [
        (part, tensor((experts, half, columns), replace(whole, start=start, stop=start + half)))
        for part, start in zip(names, (0, half), strict=True)
    ]


def _is_transposed(gate_up: bool, rows: int, columns: int, config: QwenConfig) -> bool:
    """Return True if a file stores the transpose of each matrix in a stack of experts.

    The files that Qwen publishes of Qwen3-VL-MoE are transposed. transformers 5 saves the same
    model without the transpose. The shape tells them apart, as in transformers, which takes square
    matrices as they are.

    Args:
        gate_up: True for the fused gate and up projections, False for the down projection.
        rows: the number of rows of each matrix in the file.
        columns: the number of columns of each matrix in the file.
        config: the architecture.
    """
    if config.model_type != "qwen3_vl_moe" or config.experts is None:
        return False
    inputs = config.hidden_size if gate_up else config.experts.intermediate_size
    return rows == inputs != columns


def _stack(folder: Path, name: str, members: dict[int, StoredTensor]) -> StoredTensor:
    """Return the stacked tensor of all experts, given the tensor of each expert."""
    first = next(iter(members.values()))
    missing = [index for index in range(max(members) + 1) if index not in members][:5]
    if missing:
        raise CheckpointError(
            f"{folder}: {name}: experts {missing} are missing, the last is {max(members)}: "
            "download the checkpoint again"
        )
    for index, member in members.items():
        if (member.dtype, member.shape) != (first.dtype, first.shape):
            raise CheckpointError(
                f"{folder}: {member.pieces[0].key[:80]}: expected {first.dtype} {first.shape} as "
                f"the other experts have, expert {index} has {member.dtype} {member.shape}: "
                "download the checkpoint again"
            )
    return StoredTensor(
        dtype=first.dtype,
        shape=(len(members), *first.shape),
        pieces=tuple(members[index].pieces[0] for index in range(len(members))),
        stacked=True,
    )
