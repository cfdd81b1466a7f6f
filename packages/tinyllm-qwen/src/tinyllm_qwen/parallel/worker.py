"""The main loop of a worker, which is every rank but rank 0."""

from collections.abc import Iterable, Sequence

import mlx.core as mx
from tinyllm_layers import LayerCache

from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.command import decode
from tinyllm_qwen.parallel.execute import Result, arrays_of, execute


def work(model: Qwen, lines: Iterable[bytes]) -> None:
    """Execute the commands of rank 0 until there are no more.

    Args:
        model: this rank's part of the model.
        lines: encoded commands, as `ControlChannel.received` yields them.

    Raises:
        ValueError: if a command cannot be decoded or executed.
        RuntimeError: if another rank is lost during an all-reduce.
    """
    caches: dict[int, Sequence[LayerCache]] = {}
    result: Result = None
    for line in lines:
        # Wait for the previous pass: MLX writes to caches in place only if no running pass reads
        # them.
        mx.eval(arrays_of(result))
        result = execute(model, caches, decode(line))
