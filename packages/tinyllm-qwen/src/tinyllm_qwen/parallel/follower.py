"""What the ranks do that do not lead."""

from collections.abc import Iterable

import mlx.core as mx
from tinyllm_layers import KVCache

from tinyllm_qwen.model import Qwen
from tinyllm_qwen.parallel.orders import DropCache, FindBest, MakeCache, Pass, Score, decoded


def follow(model: Qwen, lines: Iterable[bytes]) -> None:
    """Do as the leader says until it says no more.

    Args:
        model: this rank's part of the model.
        lines: from the leader, as `Line.received` gives them.

    Raises:
        ValueError: if an order is not understood, or asks for what is not there.
        RuntimeError: if another rank is lost in the middle of a sum.
    """
    caches: dict[int, list[KVCache]] = {}
    h = mx.zeros((0,))
    for line in lines:
        match decoded(line):
            case MakeCache(number, kv_bits, max_size):
                caches[number] = model.make_cache(kv_bits=kv_bits, max_size=max_size)
            case DropCache(number):
                del caches[number]
            case Pass(number, offset, tokens):
                for cache in caches[number]:
                    if cache.offset != offset:
                        cache.trim(offset)
                h = model.hidden(mx.array(tokens, dtype=mx.int32), caches[number])
                if len(tokens[0]) == 1:
                    mx.async_eval(h)
                else:  # the next chunk's caches are written in place once this one is done
                    mx.eval(h)
            case Score(last_only):
                mx.eval(model.head(h[:, -1:] if last_only else h))
            case FindBest(k):
                mx.eval(model.best(h[:, -1:], k).tokens)
