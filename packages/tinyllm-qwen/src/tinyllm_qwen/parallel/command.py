"""The command that rank 0 sends to the workers for a forward pass, as a line of JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import mlx.core as mx
from tinyllm_layers import Batch, LayerCache
from tinyllm_ops import NO_STATE, PageTable, Phase, StateTable

from tinyllm_qwen.model import Qwen

Output = Literal["hidden", "logits", "best"]
"""The result of a pass: that of `Qwen.hidden`, `Qwen.__call__` or `Qwen.best_tokens`, in order."""

_TABLE = ("block_tables", "cu_seqlens_q", "seq_lens", "slot_mapping")


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The arguments of `Qwen.make_pages`, or of `Qwen.make_caches` if `num_pages` is None.

    Attributes:
        kv_bits: the bits of quantized keys and values; None keeps them dense.
        max_size: the number of tokens that caches of one sequence keep; None for all.
        num_pages: the number of pages; None for caches of one sequence.
        page_size: the number of tokens in a page.
        state_slots: the number of states of each recurrent layer.
    """

    kv_bits: int | None = None
    max_size: int | None = None
    num_pages: int | None = None
    page_size: int = 0
    state_slots: int = 0

    def make(self, model: Qwen) -> Sequence[LayerCache]:
        """Make the caches of the layers of this rank."""
        if self.num_pages is None:
            return model.make_caches(kv_bits=self.kv_bits, max_size=self.max_size)
        return model.make_pages(
            self.num_pages, self.page_size, kv_bits=self.kv_bits, state_slots=self.state_slots
        )


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """One forward pass, or a change of the caches if there are no tokens.

    Attributes:
        cache: the number that identifies the caches of the pass. A rank makes new caches for a new
            number.
        spec: the kind of the caches.
        dropped: the numbers of caches to free.
        length: the length to which caches of one sequence are trimmed before the pass; None for
            pages.
        copies: source and target of each page to copy before the pass.
        tokens: the ids `B L`. Without tokens, the caches are made and evaluated, and no pass runs.
        batch: the layout of the pass; None without tokens.
        output: the kind of the result.
        last: for "logits", the number of last positions; None for all.
        indices: for "logits" and "best", the tokens to score; None for all, or for the last of each
            row.
        k: for "best", the number of tokens.
    """

    cache: int
    spec: CacheSpec = CacheSpec()
    dropped: Sequence[int] = ()
    length: int | None = None
    copies: Sequence[tuple[int, int]] = ()
    tokens: Sequence[Sequence[int]] = ()
    batch: Batch | None = None
    output: Output = "hidden"
    last: int | None = None
    indices: Sequence[int] | None = None
    k: int = 1


def encode(forward: Forward) -> bytes:
    """Encode a command as one line of JSON. Fields with their default values are left out.

    Raises:
        ValueError: if the batch has an array of positions but no page table.
    """
    # `asdict` would copy every number of a block table, which takes ten times as long as `dumps`.
    content = {
        field.name: getattr(forward, field.name)
        for field in fields(forward)
        if field.name not in ("batch", "spec") and getattr(forward, field.name) != field.default
    }
    if forward.spec != CacheSpec():
        content["spec"] = {
            field.name: getattr(forward.spec, field.name) for field in fields(forward.spec)
        }
    if forward.batch is not None:
        content |= _encoded_batch(forward.batch)
    return json.dumps(content, separators=(",", ":"), default=list).encode() + b"\n"


def decode(line: bytes) -> Forward:
    """Decode a line of JSON to a command.

    Raises:
        ValueError: if the line is not a command of this version of tinyllm.
    """
    try:
        return _forward(**json.loads(line))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"command: expected a forward pass, got {line[:80]!r} ({error}): do all ranks run the "
            "same version?"
        ) from error


def _encoded_batch(batch: Batch) -> dict[str, object]:
    """Return the fields of a batch that do not follow from the tokens and the cache spec."""
    if batch.page_table is not None:
        encoded: dict[str, object] = {name: getattr(batch.page_table, name) for name in _TABLE}
        states = batch.state_table
        if states is not None:
            encoded |= {
                "state_cu_seqlens": states.cu_seqlens,
                "state_load_slots": states.load_slots,
                "state_save_pairs": states.save_pairs,  # the states of few prompt tokens are saved
            }
        return encoded | {"phase": batch.phase}
    positions = batch.positions
    if isinstance(positions, mx.array):
        raise ValueError(
            "batch: expected positions by number, got an array: make it with `Batch.at`, or with "
            "`Batch.paged` for pages"
        )
    return {"phase": batch.phase, "offset": positions.start or 0}


def _forward(
    *,
    cache: int,
    spec: Mapping[str, int | None] | None = None,
    copies: Sequence[Sequence[int]] = (),
    tokens: Sequence[Sequence[int]] = (),
    phase: Phase = "prefill",
    offset: int = 0,
    block_tables: Sequence[Sequence[int]] = (),
    cu_seqlens_q: Sequence[int] = (),
    seq_lens: Sequence[int] = (),
    slot_mapping: Sequence[int] = (),
    state_cu_seqlens: Sequence[int] = (),
    state_load_slots: Sequence[int] = (),
    state_save_pairs: Sequence[Sequence[int]] = (),
    **rest: object,
) -> Forward:
    """Make a command from the fields of a decoded line."""
    # The types are not checked, since the fields come from JSON. `decode` reports a TypeError for
    # fields of another version.
    caches = CacheSpec(**(spec or {}))  # type: ignore[arg-type]
    batch = None
    if tokens and caches.num_pages is None:
        batch = Batch.at(offset, len(tokens), len(tokens[0]), phase)
    elif tokens and caches.num_pages is not None:
        table = PageTable(
            block_tables,
            cu_seqlens_q,
            seq_lens,
            slot_mapping,
            num_pages=caches.num_pages,
            page_size=caches.page_size,
        )
        states = None
        if state_cu_seqlens:
            states = _state_table(
                state_cu_seqlens, state_load_slots, state_save_pairs, caches.state_slots
            )
        batch = Batch.paged(table, phase, states)
    pairs = tuple((source, target) for source, target in copies)
    # The other fields come from JSON as well.
    return Forward(cache, caches, copies=pairs, tokens=tokens, batch=batch, **rest)  # type: ignore[arg-type]


def _state_table(
    cu_seqlens: Sequence[int],
    load_slots: Sequence[int],
    save_pairs: Sequence[Sequence[int]],
    num_slots: int,
) -> StateTable:
    """Make a state table, given the tokens whose states are saved and their slots."""
    save_slots = [NO_STATE] * cu_seqlens[-1]
    for token, slot in save_pairs:
        save_slots[token] = slot
    return StateTable(cu_seqlens, load_slots, save_slots, num_slots)
