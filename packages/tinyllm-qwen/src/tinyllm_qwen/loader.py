"""The loader of a model and its tokenizer, from a folder or a repository."""

from pathlib import Path

import mlx.core as mx
from tinyllm_layers import Backend, RankCommunicator
from tinyllm_layers.backend import bytes_as_loaded
from tinyllm_ops import REFERENCE, OpSet

from tinyllm_qwen.checkpoint.hub import resolve
from tinyllm_qwen.checkpoint.tensor_reader import Progress
from tinyllm_qwen.checkpoint.weights import load_part, load_weights
from tinyllm_qwen.config.qwen import QwenConfig
from tinyllm_qwen.errors import CheckpointError
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.partition.groups import ParallelGroups
from tinyllm_qwen.partition.local_ranks import local_ranks
from tinyllm_qwen.partition.split import HEADS, Split
from tinyllm_qwen.text.tokenizer import Tokenizer


def load(
    path_or_repo: str | Path,
    *,
    ops: OpSet = REFERENCE,
    dtype: mx.Dtype | None = None,
    revision: str | None = None,
    progress: Progress | None = None,
    group: mx.distributed.Group | None = None,
    split: Split = HEADS,
    draft_head: bool = False,
) -> tuple[Qwen, Tokenizer]:
    """Load a model and its tokenizer.

    The config and the tokenizer are checked first, so that their errors are raised before the
    weights are read.

    Args:
        path_or_repo: the folder of a checkpoint, "pico" for the built-in model, or the name of a
            repository on the Hugging Face Hub, such as "Qwen/Qwen3-0.6B".
        ops: the implementation of the maths. The default is the reference, for reading and tests:
            it is slow. Pass `tinyllm_kernels.BackendChoice.choose().ops`, the fastest on this
            machine, or `tinyllm_ops.MLX`. A `Backend`, such as that of the CPU kernels, has a
            faster stack of layers and changes the layout of the weights.
        dtype: the dtype of the floating weights; None keeps the dtype of the checkpoint, or that of
            most bytes if it has several, packed matrices not counted.
        revision: the branch, tag or commit of a repository.
        progress: a callback with the number of bytes of weights read so far, and of all bytes.
        group: the processes that share the model, from `mx.distributed.init`. Each process loads
            its part of the model and computes with the other processes: see `RankCommunicator`.
            All of them must call this function at the same time.
        split: the division of the model between the processes. By heads, each process has a part of
            every layer. By layers, each process has some of the layers.
        draft_head: True to load the draft head of Qwen3-Next or Qwen3.5, for speculation; see
            `DraftHead`.

    Raises:
        CheckpointError: if the files are missing, damaged, or of a model that is not supported, if
            they lack the draft head that `draft_head` asks for, or if the free memory is too
            little for the weights.
        HubError: if a repository cannot be fetched.
        ValueError: if `dtype` is not float32, float16 or bfloat16, the group has too many processes
            for the model, the numbers of ranks or layers in `split` do not fit, or `draft_head` is
            set for several processes.
    """
    if draft_head and group is not None and group.size() > 1:
        raise ValueError(
            f"draft_head: expected False with several processes, got True with {group.size()}: "
            "use a draft model, or one process"
        )
    folder = resolve(path_or_repo, revision)
    config = QwenConfig.from_folder(folder)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, the embedding "
            f"{config.vocab_size} rows: tokenizer.json and config.json are not of one model"
        )
    groups = None
    prepared_bytes = ops.prepared_bytes if isinstance(ops, Backend) else bytes_as_loaded
    if group is None or group.size() == 1:
        weights = load_weights(
            folder,
            config,
            dtype=dtype,
            progress=progress,
            draft_head=draft_head,
            prepared_bytes=prepared_bytes,
        )
    else:
        ranks = RankCommunicator(group)
        local = local_ranks(ranks)
        weights, partitions = load_part(
            folder,
            config,
            ranks.rank,
            ranks.size,
            split=split,
            dtype=dtype,
            progress=progress,
            prepared_bytes=prepared_bytes,
            local_ranks=local.ranks,
            free=local.free,
        )
        groups = ParallelGroups.of(ranks, partitions)
    if isinstance(ops, Backend):
        ops.prepare(weights)
    return Qwen(config, weights, ops=ops, groups=groups), tokenizer
