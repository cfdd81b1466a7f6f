"""How an engine is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineSettings:
    """Limits and choices of an engine; the defaults suit a machine with a few cores.

    Attributes:
        page_size: tokens a page of keys and values.
        memory_bytes: for all pages; None takes what `max_running` contexts need, but at most 4 GiB
            (or one context, if that is more), and half of the memory that is free.
        max_running: requests that are computed at a time.
        max_waiting: requests that may wait for that; one more is refused.
        prefill_tokens: tokens of prompts that a step computes at most.
        step_seconds: how long the prompts' share of a step should take: it is cut down until it
            does. Who decodes waits no longer than this between two tokens, and who comes new no
            longer until the first one is looked at.
        kv_bits: keep keys and values in so many bits, 8 or 4; None keeps the model's dtype.
        prefix_cache: keep the pages of finished requests for those that begin alike.
        prefix_cache_bytes: how much of the memory they may take while nobody uses them; None
            lets them take all.
        prefix_path: a file from which an engine takes the kept pages of an earlier one, and to
            which `Engine.save_prefixes` writes them; None keeps none.
        speculation: tokens guessed at most ahead of each token, by a draft model or from what
            the text has said before; 0 guesses nothing.

    Raises:
        ValueError: if a number is out of its range.
    """

    page_size: int = 32
    memory_bytes: int | None = None
    max_running: int = 32
    max_waiting: int = 256
    prefill_tokens: int = 512
    step_seconds: float = 0.25
    kv_bits: int | None = None
    prefix_cache: bool = True
    prefix_cache_bytes: int | None = None
    prefix_path: Path | None = None
    speculation: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, least in (
            ("page_size", 1),
            ("max_running", 1),
            ("max_waiting", 0),
            ("prefill_tokens", 2),
            ("speculation", 0),
        ):
            number = getattr(self, name)
            if number < least:
                raise ValueError(f"{name}: expected at least {least}, got {number}")
        if not self.step_seconds > 0:
            raise ValueError(f"step_seconds: expected more than 0, got {self.step_seconds}")
        for name in ("memory_bytes", "prefix_cache_bytes"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ValueError(f"{name}: expected at least 0, got {number}")
        if self.kv_bits not in (None, 4, 8):
            raise ValueError(f"kv_bits: expected 4, 8 or None, got {self.kv_bits}")
