"""Batches of dialogues of similar length, so that a batch has little padding."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# The first tokens of an answer decide which answer it is; the others are recited. The first tokens
# are a tenth of all: with a plain mean, a model learns to recite long before it learns to choose.
OPENING = 5
OPENING_WEIGHT = 6.0
CUT_SHARE = 0.75

# The ids of a dialogue, and for each id True if pico has to generate it.
Encoded = tuple[list[int], list[bool]]


@dataclass(frozen=True)
class Batch:
    """B dialogues of at most L tokens, padded on the right; the model learns N of the tokens.

    Attributes:
        ids: token ids, B L.
        positions: N flat indices into B L. The logits at a position should predict the next token.
        targets: the N tokens to predict.
        weights: the weights of the N tokens in the loss.
        tokens: tokens that are not padding.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    weights: Tensor
    tokens: int


def last_answer(is_target: list[bool]) -> int:
    """Return the position at which the last answer of a row begins."""
    first = len(is_target) - is_target[::-1].index(True)
    while first and is_target[first - 1]:
        first -= 1
    return first


def cut(row: Encoded, rng: random.Random) -> Encoded:
    """Cut `row` a few tokens into its last answer, three times in four; else return it whole.

    Choosing an answer takes more training than reciting it, and a row that ends once the choice
    is made costs half.
    """
    ids, is_target = row
    if rng.random() >= CUT_SHARE:
        return row
    end = last_answer(is_target) + rng.randint(OPENING + 1, 3 * OPENING)
    return ids[:end], is_target[:end]


def padded(length: int) -> int:
    """Return the length of a row of `length` tokens in a batch: the next multiple of 16."""
    return -(-length // 16) * 16


def batch(rows: Sequence[Encoded], pad: int) -> Batch:
    """Return one batch of `rows`, padded with the id `pad`."""
    length = padded(max(len(ids) for ids, _ in rows))
    ids = torch.full((len(rows), length), pad, dtype=torch.long)
    is_target = torch.zeros((len(rows), length), dtype=torch.bool)
    for row, (tokens, flags) in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        is_target[row, : len(flags)] = torch.tensor(flags)
    column = torch.arange(length).expand_as(ids)
    age = column - torch.where(is_target, -1, column).cummax(dim=1).values  # 1 at an answer's first
    weight = torch.where(age <= OPENING, OPENING_WEIGHT, 1.0)
    # Position j predicts token j + 1. A row begins with a role mark, which the model never
    # generates, so the roll carries nothing from a row's first token to its end.
    positions = is_target.roll(-1, dims=1).flatten().nonzero().squeeze(1)
    targets_at = positions + 1
    count = sum(len(tokens) for tokens, _ in rows)
    return Batch(ids, positions, ids.flatten()[targets_at], weight.flatten()[targets_at], count)


def bucketed(
    rows: Sequence[Encoded], pad: int, size: int, rng: random.Random, limit: int = 1024
) -> list[Batch]:
    """Return `rows` in batches of at most `size` tokens, padding included, in random order.

    Rows of similar length share a batch. A row that is longer than `size` is a batch alone.

    Raises:
        ValueError: a row is longer than `limit`.
    """
    longest = max(len(ids) for ids, _ in rows)
    if longest > limit:
        raise ValueError(
            f"a dialogue of {longest} tokens, expected at most {limit}: shorten its answers"
        )
    # Noise of a few tokens, so that the same rows do not always share a batch.
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
