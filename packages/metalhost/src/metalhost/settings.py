"""How kernels are run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["check", "fast"]


@dataclass(frozen=True)
class Settings:
    """How a kernel is run.

    Attributes:
        mode: `"check"` looks at every load and store before it happens: bounds, races, memory that
            nobody has written, undefined behaviour, outputs left unwritten. `"fast"` has guard
            pages and poisoned memory alone, at two to four times the speed. Both find divergence.
        seed: 0 runs threads in their natural order, any other in a random one of its own.
        offset_views: let inputs begin one element after an aligned address, as slices do in MLX.
        allow_divergence: let some lanes of a simdgroup do simd operations without the others.
        timeout: seconds that a launch may take.
        threadgroup_memory: bytes of it that a device has.
        lint: refuse what a C++ compiler takes and Metal does not.
        address_spaces: where clang is installed, have it check those in every kernel that is
            checked.
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
        """Refuse what cannot be meant."""
        if self.mode not in ("check", "fast"):
            raise ValueError(f"mode: expected 'check' or 'fast', got {self.mode!r}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed: expected 0 to 2^64 - 1, got {self.seed}")
        if not 0 < self.timeout <= 86400:
            raise ValueError(f"timeout: expected seconds up to a day, got {self.timeout}")

    def __str__(self) -> str:
        """A short name, as a test's parameter has it."""
        return f"{self.mode}-{self.seed}{'-offset' if self.offset_views else ''}"


SWEEP = (
    Settings(),
    Settings(seed=1, offset_views=True),
    Settings(seed=2, offset_views=True),
    *(Settings(mode="fast", seed=seed) for seed in (0, 1, 2, 3)),
)
"""What a kernel should pass before it meets a GPU."""

_current: ContextVar[Settings] = ContextVar("metalhost settings")


def current() -> Settings:
    """The settings of calls that bring none."""
    return _current.get(Settings())


@contextmanager
def using(settings: Settings) -> Iterator[Settings]:
    """Run all kernels within by these settings, unless a call brings its own."""
    token = _current.set(settings)
    try:
        yield settings
    finally:
        _current.reset(token)


def chosen(mode: Mode | None, seed: int | None, offset_views: bool | None) -> Settings:
    """The current settings, but for what a call says."""
    now = current()
    return replace(
        now,
        mode=now.mode if mode is None else mode,
        seed=now.seed if seed is None else seed,
        offset_views=now.offset_views if offset_views is None else offset_views,
    )
