"""Settings of kernel runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["check", "fast"]


@dataclass(frozen=True)
class Settings:
    """Settings of a kernel run.

    Attributes:
        mode: `"check"` checks every load and store before it happens: bounds, races, uninitialized
            memory, undefined behavior, unwritten outputs. `"fast"` uses only guard pages and
            poisoned memory, and runs two to four times as fast. Both modes find divergence. Only
            `"check"` finds it between two calls of one function.
        seed: 0 runs threads in their natural order. Every other seed selects a random order.
        offset_views: start inputs one element after an aligned address, as MLX slices do.
        allow_divergence: let some lanes of a simdgroup run simd operations without the others.
        timeout: time limit of a launch, in seconds.
        threadgroup_memory: threadgroup memory of the device, in bytes.
        lint: reject constructs that C++ accepts and Metal rejects.
        address_spaces: check address spaces with clang, if it is installed, in mode `"check"`.
    """

    mode: Mode = "check"
    seed: int = 0
    offset_views: bool = False
    allow_divergence: bool = False
    timeout: float = 60.0
    threadgroup_memory: int = 32768
    lint: bool = True
    address_spaces: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        if self.mode not in ("check", "fast"):
            raise ValueError(f"mode: expected 'check' or 'fast', got {self.mode!r}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: expected 0 to 2^64 - 1, got {self.seed}")
        if not 0 < self.timeout <= 86400:
            raise ValueError(f"timeout: expected seconds up to a day, got {self.timeout}")

    def __str__(self) -> str:
        """Return a short name, such as `check-1-offset`, for test IDs and reports."""
        return f"{self.mode}-{self.seed}{'-offset' if self.offset_views else ''}"


SWEEP = (
    Settings(),
    Settings(seed=1, offset_views=True),
    Settings(seed=2, offset_views=True),
    *(Settings(mode="fast", seed=seed) for seed in (0, 1, 2, 3)),
)
"""Settings that a kernel should pass before it runs on a GPU."""

_current: ContextVar[Settings] = ContextVar("metalhost settings")


def current() -> Settings:
    """Return the settings for calls that specify none."""
    return _current.get(Settings())


@contextmanager
def using(settings: Settings) -> Iterator[Settings]:
    """Use the settings for all kernel calls in the `with` block that specify none."""
    token = _current.set(settings)
    try:
        yield settings
    finally:
        _current.reset(token)


def call_settings(mode: Mode | None, seed: int | None, offset_views: bool | None) -> Settings:
    """Return the current settings, with the values that a call specifies."""
    settings = current()
    return replace(
        settings,
        mode=settings.mode if mode is None else mode,
        seed=settings.seed if seed is None else seed,
        offset_views=settings.offset_views if offset_views is None else offset_views,
    )
