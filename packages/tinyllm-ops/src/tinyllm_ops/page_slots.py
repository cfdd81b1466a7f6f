"""Slots: the places of tokens in pages, counted over all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import mlx.core as mx
from jaxtyping import Int32

from tinyllm_ops.contract import Weight
from tinyllm_ops.quantized_tensor import QuantizedTensor


def write_slots(pages: Weight, rows: Weight, slots: Int32[mx.array, "T"]) -> Weight:
    """Pages in which row t is at slots[t].

    The slots are read back to the host, where whoever made them had them anyway.

    Args:
        pages: `P Hkv page D`; they are written in place if nobody else holds the arrays when the
            graph is computed.
        rows: `T Hkv D` in the same format.
        slots: page * page_size + place in the page of each row, no two alike; -1 is nowhere.
    """
    goes = [t for t, slot in enumerate(cast(list[int], slots.tolist())) if slot >= 0]
    if not goes:
        return pages
    if len(goes) < slots.size:
        chosen = mx.array(goes)
        rows, slots = rows[chosen], slots[chosen]
    if isinstance(pages, mx.array):
        assert isinstance(rows, mx.array)
        return _written(pages, rows, slots)
    assert isinstance(rows, QuantizedTensor)
    parts = zip(pages.arrays, rows.arrays, strict=True)
    packed, scales, *biases = (_written(stored, made, slots) for stored, made in parts)
    return replace(pages, packed=packed, scales=scales, biases=biases[0] if biases else None)


def _written(pages: mx.array, rows: mx.array, slots: mx.array) -> mx.array:
    page = pages.shape[2]
    written = pages[...]  # another name: what the caller holds stays as it is
    written[slots // page, :, slots % page] = rows
    return written
