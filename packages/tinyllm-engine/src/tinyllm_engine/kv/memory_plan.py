"""The division of an engine's memory between pages, states of requests, and snapshots."""

from dataclasses import dataclass

from tinyllm_qwen.free_memory import cache_bytes, free_memory

from tinyllm_engine.config import EngineSettings

_DEFAULT_BYTES = 4 << 30
"""The most bytes allocated by default, unless one context needs more."""

_DEFAULT_TOKENS = 1024
"""The fewest tokens that the pages hold by default, unless the context is shorter."""

_PART = 4
"""States of requests take at most one part in four of the memory, and so do snapshots."""


class MemorySettingError(ValueError):
    """A memory setting of an engine is out of its bounds, which depend on the model.

    Attributes:
        setting: the name of the setting in `EngineSettings`.
        contents: the contents of the memory, such as "one page of 32 tokens".
        got: the number of bytes in the settings, or the part of the free memory by default.
        least: the smallest number of bytes. Snapshots may also have none.
        most: the largest number of bytes; None if the number in the settings is too small.
    """

    def __init__(
        self, setting: str, contents: str, got: int, *, least: int, most: int | None = None
    ) -> None:
        """Make the message from the bounds and the number of bytes."""
        if most is None:
            bounds, remedy = f"at least {least}", "give more"
        elif setting == "kv_cache_memory_bytes":
            bounds, remedy = f"at most {most}", "give less"
        else:
            bounds = f"0, or from {least} to {most}"
            remedy = "change it, or give more kv_cache_memory_bytes"
        super().__init__(f"{setting}: expected {bounds} bytes for {contents}, got {got}: {remedy}")
        self.setting = setting
        self.contents = contents
        self.got = got
        self.least = least
        self.most = most


@dataclass(frozen=True)
class MemoryPlan:
    """The numbers of pages and of slots that an engine allocates.

    Attributes:
        num_pages: number of pages.
        num_states: number of slots for recurrent states of requests; 0 without recurrent layers.
        num_snapshots: number of slots for snapshots.
    """

    num_pages: int
    num_states: int = 0
    num_snapshots: int = 0


def plan_memory(
    settings: EngineSettings, page_bytes: int, state_bytes: int, context_length: int
) -> MemoryPlan:
    """Divide the memory of an engine.

    Without recurrent layers, pages take all memory. Otherwise the states of `max_num_seqs` requests
    and of their draft tokens take up to a quarter of the memory. Snapshots take up to a quarter, or
    `snapshot_memory_bytes`. Pages take the rest.

    Args:
        settings: the settings of the engine.
        page_bytes: bytes of one page in all layers.
        state_bytes: bytes of one recurrent state in all layers; 0 without recurrent layers.
        context_length: the most tokens of a prompt and its answer.

    Raises:
        MemorySettingError: if the memory is too little for one page and the states of one request,
            or for the snapshots that the settings ask for, or if it is more than is free. By
            default, if too little is free for 1,024 tokens and the states of one request.
        ValueError: if the model has no attention layer.
    """
    if not page_bytes:
        raise ValueError("model: expected one attention layer or more, got none: use `generate`")
    per_request = 1 + settings.num_speculative_tokens  # recurrent states
    memory, tokens = settings.kv_cache_memory_bytes, settings.page_size
    contents = f"one page of {tokens} tokens"
    if memory is None:
        tokens = min(_DEFAULT_TOKENS, context_length)
        contents = f"{tokens} tokens"
    least_pages = -(-tokens // settings.page_size) * page_bytes
    least = least_pages + per_request * state_bytes
    if memory is None:
        memory = _default_bytes(settings, page_bytes, per_request * state_bytes, context_length)
        memory = max(memory, _free_part(least))
    if memory < least:
        if state_bytes:
            contents += f" and {per_request} recurrent state{'s' if per_request > 1 else ''}"
        raise MemorySettingError("kv_cache_memory_bytes", contents, memory, least=least)
    if memory > (most := _free_part(memory)):
        contents = "pages and states, within the free memory"
        raise MemorySettingError("kv_cache_memory_bytes", contents, memory, least=least, most=most)
    if not state_bytes:
        return MemoryPlan(memory // page_bytes)
    fitting = max(per_request, memory // _PART // state_bytes)
    states = min(
        settings.max_num_seqs * per_request, fitting, (memory - least_pages) // state_bytes
    )
    left = memory - states * state_bytes - least_pages
    snapshots = _snapshots(settings, state_bytes, min(memory // _PART, left), left)
    pages = (memory - (states + snapshots) * state_bytes) // page_bytes
    return MemoryPlan(pages, states, snapshots)


def _free_part(memory: int) -> int:
    """Return the part of some bytes that is free: MLX's allocator for CPUs reports no failure."""
    return min(memory, cache_bytes(free_memory()))


def _snapshots(settings: EngineSettings, state_bytes: int, default: int, most: int) -> int:
    """Return the number of snapshots.

    Args:
        settings: the settings of the engine.
        state_bytes: bytes of one recurrent state in all layers.
        default: bytes for snapshots, if the settings do not give them.
        most: bytes that one page and the states of requests leave.
    """
    if not settings.enable_prefix_caching:
        return 0
    wanted = settings.snapshot_memory_bytes
    if wanted is None:
        return default // state_bytes
    if wanted > most or 0 < wanted < state_bytes:
        raise MemorySettingError(
            "snapshot_memory_bytes", "snapshots", wanted, least=state_bytes, most=most
        )
    return wanted // state_bytes


def _default_bytes(
    settings: EngineSettings, page_bytes: int, state_bytes: int, context_length: int
) -> int:
    """Return the bytes to allocate if the settings give no number; see `EngineSettings`.

    Args:
        settings: the settings of the engine.
        page_bytes: bytes of one page in all layers.
        state_bytes: bytes of the recurrent states of one request and its draft tokens.
        context_length: the most tokens of a prompt and its answer.
    """
    context = -(-context_length // settings.page_size) * page_bytes
    if state_bytes:
        # The pages get at least half of the memory, and the states of requests at most a quarter.
        context = max(2 * context, _PART * state_bytes)
    # Touching a gigabyte takes about a second, so the default is limited.
    limit = max(context, _DEFAULT_BYTES)
    return min(settings.max_num_seqs * context, limit, free_memory() // 2)
