"""Oracles of one sequence, applied to all sequences of a state table."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tinyllm_ops.state_table import NO_STATE, StateTable
from tinyllm_ops.testing.oracle import Array


def scan_sequences(
    table: StateTable, state: Array, scan: Callable[[slice, Array], tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Compute each sequence of a pass, and save the states that the table names.

    Args:
        table: the pass, with at least one token.
        state: all slots.
        scan: computes the tokens of a slice, at least one, from the state before them. It returns
            their outputs and the states after 0, 1, ... tokens.

    Returns:
        The outputs of all tokens, and the slots with the saved states.
    """
    outputs, slots = [], state.copy()
    for load, (first, end) in zip(table.load_slots, pairwise(table.cu_seqlens), strict=True):
        if first == end:
            continue
        before = np.zeros(state.shape[1:]) if load == NO_STATE else state[load]
        y, after = scan(slice(first, end), before)
        outputs.append(y)
        for n, slot in enumerate(table.save_slots[first:end], start=1):
            if slot != NO_STATE:
                slots[slot] = after[n]
    return np.concatenate(outputs), slots
