"""Settings of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EngineSettings:
    """Limits and choices of an engine; the defaults suit a machine with a few cores.

    Attributes:
        page_size: tokens a page of keys and values.
        memory_bytes: memory for all pages; None takes what `max_running` contexts need, but at most
            4 GiB (or one context, if that is more), and half of the free memory.
        max_running: the most requests that are computed at a time.
        max_waiting: the most requests in the queue; one more is refused.
        prefill_tokens: the most prompt tokens that a step computes.
        step_seconds: the time that the prefill of a step should take; its tokens are reduced until
            it does. A request that decodes waits no longer than this between two tokens, and a new
            request no longer before its first chunk.
        kv_bits: quantize keys and values to 8 or 4 bits; None keeps the model's dtype.
        prefix_cache: keep the pages of finished requests for requests with the same prefix.
        prefix_cache_bytes: the most memory for pages that only the prefix cache holds; None
            allows all of it.
        prefix_path: a file from which the engine loads the prefix cache of an earlier one, and to
            which `Engine.save_prefixes` writes it; None uses no file.
        speculation: the most draft tokens a step for each request, from a draft model or from the
            text itself; 0 turns speculation off.

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
