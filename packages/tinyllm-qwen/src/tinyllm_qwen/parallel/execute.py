"""The execution of commands, which every rank does in the same way, and the loop of a worker."""

from collections.abc import Iterable, MutableMapping, Sequence

import mlx.core as mx
from tinyllm_layers import LayerCache, SequenceCache

from tinyllm_qwen.caches import cache_arrays
from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.command import Forward, decode
from tinyllm_qwen.sampling.best_tokens import BestTokens

Caches = MutableMapping[int, Sequence[LayerCache]]
"""The caches of this rank by number, each a sequence of one `LayerCache` per layer."""

Result = mx.array | BestTokens | None


def execute(model: Qwen, caches: Caches, forward: Forward) -> Result:
    """Compute a forward pass with this rank's part of the model.

    The evaluation starts at once, even if the caller never reads the result, because the other
    ranks compute their parts and wait for this rank in every all-reduce.

    Args:
        model: this rank's part of the model.
        caches: the caches of this rank. New caches are added, and dropped caches are removed.
        forward: the command.

    Returns:
        The result of the kind `forward.output`; None if the command has no tokens.

    Raises:
        ValueError: if a cache cannot be trimmed to `forward.length`, or the batch does not fit the
            caches.
    """
    for number in forward.dropped:
        caches.pop(number, None)  # a worker has no caches that were dropped before their first pass
    if forward.cache not in caches:
        caches[forward.cache] = forward.spec.make(model)
    layer_caches = caches[forward.cache]
    if forward.length is not None:
        _trim(layer_caches, forward.length)
    if forward.copies:
        model.copy_pages(layer_caches, forward.copies)
    if forward.batch is None:
        # Finish the copies, so that an error is reported before the next pass.
        mx.eval(cache_arrays(layer_caches))
        return None
    tokens = mx.array([list(row) for row in forward.tokens], dtype=mx.int32)
    result: mx.array | BestTokens
    if forward.output == "best":
        result = model.best_tokens(
            tokens, forward.batch, layer_caches, forward.k, indices=forward.indices
        )
    elif forward.output == "logits":
        result = model(
            tokens, layer_caches, batch=forward.batch, last=forward.last, indices=forward.indices
        )
    else:
        result = model.hidden(tokens, forward.batch, layer_caches)
    mx.async_eval(result_arrays(result), cache_arrays(layer_caches))
    return result


def work(model: Qwen, lines: Iterable[bytes]) -> None:
    """Execute the commands of rank 0 until there are no more, as a worker: any other rank.

    Args:
        model: this rank's part of the model.
        lines: encoded commands, as `ControlChannel.received` yields them.

    Raises:
        ValueError: if a command cannot be decoded or executed.
        RuntimeError: if another rank is lost during an all-reduce.
    """
    caches: dict[int, Sequence[LayerCache]] = {}
    for line in lines:
        # Wait for the pass: MLX writes to caches in place only if no running pass reads them. The
        # result is not kept, so that a worker without commands can free its memory.
        mx.eval(result_arrays(execute(model, caches, decode(line))))


def result_arrays(result: Result) -> list[mx.array]:
    """List the arrays of a result."""
    if isinstance(result, BestTokens):
        return result.arrays
    return [] if result is None else [result]


def _trim(caches: Sequence[LayerCache], length: int) -> None:
    """Trim the caches to the length of the driver's caches."""
    for cache in caches:
        if isinstance(cache, SequenceCache) and cache.offset != length:
            cache.trim(length)
