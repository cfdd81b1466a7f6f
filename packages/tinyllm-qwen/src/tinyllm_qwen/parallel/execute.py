"""The execution of one command, the same on every rank."""

from collections.abc import MutableMapping, Sequence

import mlx.core as mx
from tinyllm_layers import KVCache, LayerCache, PagedCache

from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.command import Forward
from tinyllm_qwen.sampling.best_tokens import BestTokens

Caches = MutableMapping[int, Sequence[LayerCache]]
"""The caches of this rank by their numbers, one `LayerCache` for each of its layers."""

Result = mx.array | BestTokens | None


def execute(model: Qwen, caches: Caches, forward: Forward) -> Result:
    """Compute a forward pass with this rank's part of the model.

    The result is computed at once, even if the caller never reads it: the other ranks compute
    their part in any case, and wait for this one in every all-reduce.

    Args:
        model: the part of the model that this rank has.
        caches: the caches of this rank; new ones are added and dropped ones removed.
        forward: the command.

    Returns:
        The output that the command asks for; None if it has no tokens.

    Raises:
        ValueError: if a cache cannot be trimmed that far, or the batch does not suit the caches.
    """
    for number in forward.dropped:
        caches.pop(number, None)  # caches that were never used have no counterpart here
    if forward.cache not in caches:
        caches[forward.cache] = forward.spec.make(model)
    own = caches[forward.cache]
    if forward.length is not None:
        _trim(own, forward.length)
    if forward.copies:
        pages = [cache for cache in own if isinstance(cache, PagedCache)]
        model.copy_pages(pages, forward.copies)
    if forward.batch is None:
        # Evaluated now, so that a lack of memory for the pages shows before the first request.
        mx.eval(_arrays(own))
        return None
    tokens = mx.array([list(row) for row in forward.tokens], dtype=mx.int32)
    result: mx.array | BestTokens
    if forward.output == "best":
        result = model.best(tokens, forward.batch, own, forward.k, rows=forward.rows)
    elif forward.output == "logits":
        result = model(tokens, own, forward.batch, last=forward.last, rows=forward.rows)
    else:
        result = model.hidden(tokens, forward.batch, own)
    mx.async_eval(arrays_of(result), _arrays(own))
    return result


def arrays_of(result: Result) -> list[mx.array]:
    """List the arrays of a result."""
    if isinstance(result, BestTokens):
        return [result.tokens, result.scores, result.log_total]
    return [] if result is None else [result]


def _trim(caches: Sequence[LayerCache], length: int) -> None:
    """Trim the tokens that the driver has trimmed."""
    for cache in caches:
        if isinstance(cache, KVCache) and cache.offset != length:
            cache.trim(length)


def _arrays(caches: Sequence[LayerCache]) -> list[mx.array]:
    return [array for cache in caches for array in cache.arrays]
