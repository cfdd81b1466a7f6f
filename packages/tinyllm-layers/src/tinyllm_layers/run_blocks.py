"""Transformer blocks, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import mlx.core as mx
from jaxtyping import Float

from tinyllm_layers.layer_cache import LayerCache
from tinyllm_layers.transformer_block import TransformerBlock


def run_blocks(
    x: Float[mx.array, "B L E"],
    blocks: Sequence[TransformerBlock],
    caches: Sequence[LayerCache],
) -> Float[mx.array, "B L E"]:
    """Pass L tokens through blocks, of which each takes what leaves the one before.

    Blocks that are values, with caches of one kind, are handed to the ops together: what lies
    between two of them costs a backend more than one might think.

    Args:
        x: the tokens.
        blocks: the first one takes x.
        caches: one for each block; they take in the new tokens.

    Raises:
        ValueError: if there are not as many caches as blocks, or a token would stand beyond the
            context.
    """
    if len(caches) != len(blocks):
        raise ValueError(f"cache: expected {len(blocks)}, one a block, got {len(caches)}")
    pairs = zip(blocks, caches, strict=True)
    for _, run in groupby(pairs, lambda pair: (pair[0].value is None, type(pair[1]))):
        x = _passed(x, *zip(*run, strict=True))
    return x


def _passed(
    x: mx.array, blocks: Sequence[TransformerBlock], caches: Sequence[LayerCache]
) -> mx.array:
    """What leaves the last of blocks that are all values, or all none."""
    values = [block.value for block in blocks if block.value is not None]
    if not values:
        for block, cache in zip(blocks, caches, strict=True):
            x = block(x, cache)
        return x
    blocks[0].check_positions(x, caches[0])  # those of the others are the same
    return caches[0].blocks(x, values, caches[1:], blocks[0].attention.ops)
