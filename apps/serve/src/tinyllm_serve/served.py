"""What answers, as the process that listens knows it."""

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

State = Literal["loading", "ready", "draining", "failed"]
Fact = str | float | None

FAREWELL = 2.0
"""Seconds in which clients learn that the model is gone, before the process ends."""


@runtime_checkable
class Served(Protocol):
    """A model in this process, or replicas of it in others."""

    async def start(self) -> None:
        """Take requests from now on; raises what loading raises."""

    def facts(self) -> Mapping[str, Fact]:
        """What the log says of it when it is ready."""

    async def failed(self) -> str:
        """Wait until nothing can be answered any more, which may be never; why that is."""

    def drain(self) -> None:
        """Take no new requests."""

    async def finish(self) -> None:
        """Wait until those under way have ended."""

    async def close(self) -> None:
        """End at once, from whatever state."""
