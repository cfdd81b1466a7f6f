"""Batches: dialogues of about one length side by side, so that little of a batch is padding."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Encoded = tuple[list[int], list[bool]]


@dataclass(frozen=True)
class Batch:
    """Token ids (B L), padded on the right.

    Attributes:
        ids: token ids.
        places: flat indices into B L from which an answer's token is predicted.
        targets: those tokens.
        tokens: tokens that are not padding.
    """

    ids: Tensor
    places: Tensor
    targets: Tensor
    tokens: int


def padded(length: int) -> int:
    """The length of a row of `length` tokens in its batch."""
    return -(-length // 16) * 16


def batch(rows: Sequence[Encoded], pad: int) -> Batch:
    """One batch of `rows` of ids and what is to be said."""
    length = padded(max(len(ids) for ids, _ in rows))
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    said = torch.zeros((len(rows), length), dtype=torch.bool)
    for row, (tokens, flags) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        said[row, : len(flags)] = torch.tensor(flags)
    # Position j predicts token j + 1; a row's first token is a role mark, so the roll never wraps an answer.
    places = said.roll(-1, dims=1).flatten().nonzero().squeeze(1)
    return Batch(ids, places, ids.flatten()[places + 1], sum(len(tokens) for tokens, _ in rows))


def bucketed(
    rows: Sequence[Encoded], pad: int, size: int, rng: random.Random, limit: int = 1024
) -> list[Batch]:
    """`rows` as batches of at most `size` tokens with padding, each of rows of like length, in random order.

    Raises:
        ValueError: a row is longer than `limit`.
    """
    longest = max(len(ids) for ids, _ in rows)
    if longest > limit:
        raise ValueError(
            f"a dialogue of {longest} tokens, expected at most {limit}: shorten its answers"
        )
    # Noise of a few tokens, so that the same rows do not always meet.
    ordered = sorted(rows, key=lambda row: len(row[0]) + rng.uniform(0, 6))
    result: list[Batch] = []
    group: list[Encoded] = []
    for row in ordered:
        if group and (len(group) + 1) * padded(max(len(ids) for ids, _ in (*group, row))) > size:
            result.append(batch(group, pad))
            group = []
        group.append(row)
    result.append(batch(group, pad))
    rng.shuffle(result)
    return result
