"""Settings of an engine."""

import operator
from dataclasses import dataclass
from math import inf
from numbers import Real
from pathlib import Path

_LEAST = {
    "page_size": 1,
    "max_model_len": 2,
    "kv_cache_memory_bytes": 0,
    "max_num_seqs": 1,
    "max_waiting": 0,
    "max_num_batched_tokens": 1,
    "prefix_cache_memory_bytes": 0,
    "snapshot_memory_bytes": 0,
    "num_speculative_tokens": 0,
}
"""The least number of each setting that is an integer."""

_OPTIONAL = {
    "max_model_len",
    "kv_cache_memory_bytes",
    "prefix_cache_memory_bytes",
    "snapshot_memory_bytes",
}
"""The settings of these that may be None."""


@dataclass(frozen=True)
class EngineSettings:
    """Limits and options of an engine. The defaults suit a machine with a few cores.

    Attributes:
        page_size: number of tokens in a page of keys and values.
        max_model_len: the most tokens of a prompt and its answer; None for the context of the
            model, which is the limit in any case.
        kv_cache_memory_bytes: memory for all pages, recurrent states and snapshots, in bytes; see
            `plan_memory`. None allocates memory for `max_num_seqs` contexts, but at most 4 GiB (or
            one context, if one context needs more), and at most half of the free memory, unless
            1,024 tokens need more. More than the free memory is refused. The free memory
            is that of the machine, or of the control group (cgroup) of the process.
        max_num_seqs: the largest number of requests that are computed at a time.
        max_waiting: the largest number of requests in the queue, in addition to `max_num_seqs`.
            More requests are refused.
        max_num_batched_tokens: the largest number of prompt tokens in a step.
        step_seconds: target duration of the prefill in a step. The engine measures the prefill, and
            adapts the number of prompt tokens in a step. The target bounds the pause between two
            tokens of a request that decodes, unless even the smallest number of prompt tokens takes
            longer: see `PrefillBudget`. While no request decodes, a step takes up to four times as
            long. This bounds the wait of a new request for its first chunk.
        kv_bits: quantize keys and values to 8 or 4 bits; None keeps the dtype of the model.
        enable_prefix_caching: True to keep the pages of finished requests for later requests with
            the same prefix.
        prefix_cache_memory_bytes: the most memory, in bytes, for pages that only the prefix cache
            holds; None for no limit below `kv_cache_memory_bytes`.
        snapshot_memory_bytes: the memory for snapshots of recurrent states, in bytes; None for at
            most a quarter of `kv_cache_memory_bytes`. Without snapshots, requests to a model with
            recurrent layers share no prefixes. Other models have no snapshots.
        prefix_cache_path: a file from which the engine loads the prefix cache of an earlier engine,
            and to which `Engine.save_prefixes` writes the prefix cache; None for no file. It needs
            `enable_prefix_caching`.
        num_speculative_tokens: the largest number of draft tokens per request and step, from a
            draft model, from the draft head of the model, or from the text itself; 0 turns
            speculation off.

    Raises:
        ValueError: if a number is not an integer where it must be, or out of its range, or if there
            is a `prefix_cache_path` without prefix caching.
    """

    page_size: int = 32
    max_model_len: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 32
    max_waiting: int = 256
    max_num_batched_tokens: int = 512
    step_seconds: float = 0.25
    kv_bits: int | None = None
    enable_prefix_caching: bool = True
    prefix_cache_memory_bytes: int | None = None
    snapshot_memory_bytes: int | None = None
    prefix_cache_path: Path | None = None
    num_speculative_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the types and the ranges."""
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is None and name in _OPTIONAL:
                continue
            try:
                number = operator.index(number)
            except TypeError:
                raise ValueError(f"{name}: expected an integer, got {number!r}") from None
            if number < least:
                raise ValueError(f"{name}: expected at least {least}, got {number}")
            object.__setattr__(self, name, number)
        if not (isinstance(self.step_seconds, Real) and 0 < self.step_seconds < inf):
            raise ValueError(
                f"step_seconds: expected a finite number above 0, got {self.step_seconds!r}"
            )
        if self.kv_bits not in (None, 4, 8) or isinstance(self.kv_bits, float):
            raise ValueError(f"kv_bits: expected 4, 8 or None, got {self.kv_bits!r}")
        if self.prefix_cache_path is not None:
            if not self.enable_prefix_caching:
                raise ValueError(
                    f"prefix_cache_path: expected None, got {str(self.prefix_cache_path)!r}: set "
                    "enable_prefix_caching to True"
                )
            object.__setattr__(self, "prefix_cache_path", Path(self.prefix_cache_path))
