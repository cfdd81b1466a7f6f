"""Page tables of sequences whose pages lie in a random order."""

import math
from collections.abc import Sequence

import numpy as np

from tinyllm_ops.page_table import PageTable


def page_table(sequences: Sequence[tuple[int, int]], page: int, *, seed: int) -> PageTable:
    """Make a table of sequences whose pages are drawn at random; three pages stay unused.

    Args:
        sequences: number of queries and number of keys of each sequence.
        page: tokens per page.
        seed: seed of the order of the pages.
    """
    needed = [math.ceil(keys / page) for _, keys in sequences]
    num_pages = sum(needed) + 3
    free = iter(np.random.default_rng(seed).permutation(num_pages).tolist())
    tables = [[next(free) for _ in range(count)] for count in needed]
    return PageTable.of(
        [
            (pages, keys - queries, keys)
            for pages, (queries, keys) in zip(tables, sequences, strict=True)
        ],
        num_pages=num_pages,
        page_size=page,
    )
