"""The loop of every rank but rank 0."""

from collections.abc import Iterable, Sequence

import mlx.core as mx
from tinyllm_layers import LayerCache

from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.command import decode
from tinyllm_qwen.parallel.execute import Result, arrays_of, execute


def work(model: Qwen, lines: Iterable[bytes]) -> None:
    """Execute the commands of rank 0 with this rank's part of a model, until there are no more.

    Args:
        model: the part of the model that this rank has.
        lines: commands, as `ControlChannel.received` yields them.

    Raises:
        ValueError: if a command is not understood or cannot be executed.
        RuntimeError: if another rank is lost in the middle of an all-reduce.
    """
    caches: dict[int, Sequence[LayerCache]] = {}
    result: Result = None
    for line in lines:
        # Caches are written in place once no running pass reads them.
        mx.eval(arrays_of(result))
        result = execute(model, caches, decode(line))
