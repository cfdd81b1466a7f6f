"""A served model, as the server and the endpoints see it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from tinyllm_serve.http.errors import unavailable
from tinyllm_serve.metrics import Metrics

State = Literal["loading", "ready", "draining", "failed"]
Fact = str | int | float | None

FAILURE_GRACE_SECONDS = 2.0
"""Seconds between a failure of the model and the end of the process.

In that time clients get the reason as the error of their requests.
"""


class ServedModel(ABC):
    """A model in this process, or replicas of it in other processes."""

    loading = "the model is still being loaded"
    """The message of the errors in the state "loading"."""

    close_timeout: float | None = None
    """Seconds in which `close` must end after a second signal, or the process is killed.

    None: no limit.
    """

    metrics: Metrics
    """The metrics that this process counts."""

    _state: State = "loading"

    @property
    def state(self) -> State:
        """The state. Requests are accepted in "ready"; "failed" is final."""
        return self._state

    @property
    def failure(self) -> str:
        """The reason of the state "failed"."""
        return "the engine has failed"

    @abstractmethod
    async def start(self) -> None:
        """Load the model, then accept requests; raises the errors of loading."""

    @abstractmethod
    def facts(self) -> Mapping[str, Fact]:
        """Return the fields of the log line "ready"."""

    async def failed(self) -> str:
        """Wait until the model has failed for good, if ever, and return the reason."""
        await asyncio.Event().wait()
        return self.failure

    def drain(self) -> None:
        """Refuse new requests."""
        self._state = "draining"

    @abstractmethod
    async def finish(self) -> None:
        """Wait until the requests in progress have ended."""

    @abstractmethod
    async def close(self) -> None:
        """End at once, in any state."""

    def check_loaded(self) -> None:
        """Check that the model is loaded, and works.

        Raises:
            ApiError: 503 while loading, and once the engine has failed.
        """
        if self.state == "loading":
            raise unavailable(self.loading)
        if self.state == "failed":
            raise unavailable(self.failure)

    def check_ready(self) -> None:
        """Check that requests are accepted.

        Raises:
            ApiError: 503 while loading, while draining, and once the engine has failed.
        """
        self.check_loaded()
        if self.state == "draining":
            raise unavailable("the server is shutting down")

    @abstractmethod
    async def metrics_text(self) -> bytes:
        """Return all metrics in Prometheus's format."""
